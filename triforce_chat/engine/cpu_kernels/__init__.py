"""Kernels for CPUs, compiled on the machine."""
