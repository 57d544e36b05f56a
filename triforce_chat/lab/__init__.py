"""What measures and trains models: benchmarks, evaluation, training, and their tasks. The product never imports it."""
