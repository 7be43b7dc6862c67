#pragma once

namespace typebar {

// Sustained read bandwidth in GB/s with that many threads over a buffer larger than the caches, about `seconds` long:
// the best of the passes over the buffer, so that a neighbour's burst does not count. Takes 256 MB, at most 1 GB.
double measure_read_bandwidth(int threads, double seconds);

}  // namespace typebar
