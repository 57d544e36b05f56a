"""The cases of the bench of kernels: calls on buffers of real models' shapes, and the bytes that each must move."""
