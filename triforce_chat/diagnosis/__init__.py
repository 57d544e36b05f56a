"""What ``doctor`` looks at."""
