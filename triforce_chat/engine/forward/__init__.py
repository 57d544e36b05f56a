"""Forward passes of a model: its modules, fused blocks in CUDA graphs, attention, streamed weights."""
