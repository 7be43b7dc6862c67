#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace typebar {

struct CpuInfo {
  std::string model_name;
  std::vector<std::string> features;  // that matter here and that both CPU and OS support, for example "avx2", "f16c"
  int logical_cpus = 1;               // in the affinity mask
  int physical_cores = 1;             // in the affinity mask
  double quota_cpus = 0;              // of the tightest cgroup (v1 or v2, nested); 0 when unlimited
  std::string quota_source;           // the file that says so
};

CpuInfo detect_cpu();

struct ThreadChoice {
  int threads;
  std::string reason;  // one line for a log
};
// min(affinity, floor(quota), physical cores), at least 1.
ThreadChoice choose_threads(const CpuInfo& cpu);

// The parts of detect_cpu() that read /proc and /sys, below `root` so that tests can lay out a machine in a folder.
struct CpuQuota {
  double cpus = 0;  // 0 when unlimited
  std::string source;
};
CpuQuota read_cpu_quota(const std::string& root = "");
int count_physical_cores(const std::vector<int>& cpus, const std::string& root = "");

// The instruction sets built into this binary that this machine can run, best first; always ends with "scalar".
std::vector<std::string> usable_isas();
// By name, or the best usable one (or that of TYPEBAR_ISA) when empty. Throws std::invalid_argument with what is
// usable.
const Kernels& select_kernels(const std::string& isa = "");

}  // namespace typebar
