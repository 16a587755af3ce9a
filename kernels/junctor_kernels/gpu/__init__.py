"""CUDA kernels of blocks of cases, of contractions over entries and of stored clique tables."""
