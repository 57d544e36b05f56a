"""Products with GGUF's quantized matrices on CPUs: a C library that is compiled when it is first needed."""
