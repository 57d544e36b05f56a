"""The commands of the program, one module each; ``app`` registers them."""
