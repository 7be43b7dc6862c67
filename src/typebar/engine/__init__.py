"""From requests to tokens: scheduling, the KV cache's blocks and their reuse, and the thread that owns the model."""
