"""From logits to tokens: warping, the acceptance rules of chains and trees, random numbers."""
