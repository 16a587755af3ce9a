"""Rows whose tables exceed a memory: cut plans, what these take, and what does their tasks here, on GPUs or workers."""
