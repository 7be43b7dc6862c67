"""What a quantization costs: `typebar eval` and `typebar compare`."""
