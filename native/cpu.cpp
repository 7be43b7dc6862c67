#include "cpu.h"

#include <sched.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "system_files.h"

namespace typebar {
namespace {

#if defined(__x86_64__)

// Linux lends the matrix registers to a process that asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA). It
// refuses where a thread's stack for signals is too small for them.
bool may_use_matrix_registers() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

std::vector<std::string> cpu_features() {
  unsigned a = 0, b1 = 0, c1 = 0, d1 = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0, b71 = 0, c71 = 0, d71 = 0;
  if (!__get_cpuid(1, &a, &b1, &c1, &d1)) return {};
  __get_cpuid_count(7, 0, &a, &b7, &c7, &d7);
  if (a >= 1) __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);

  // What the OS saves at a task switch (XCR0): without it the CPU's wide registers must not be touched.
  std::uint32_t saved = 0;
  if (c1 >> 27 & 1) {  // OSXSAVE
    std::uint32_t high;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  }
  const bool ymm = (saved & 0x6) == 0x6;
  const bool zmm = (saved & 0xe6) == 0xe6;
  const bool amx = (saved & 0x60000) == 0x60000 && (d7 >> 24 & 1);

  const std::pair<const char*, bool> known[] = {
      {"sse4_2", c1 >> 20 & 1},
      {"avx", ymm && (c1 >> 28 & 1)},
      {"f16c", ymm && (c1 >> 29 & 1)},
      {"fma", ymm && (c1 >> 12 & 1)},
      {"avx2", ymm && (b7 >> 5 & 1)},
      {"avx_vnni", ymm && (a71 >> 4 & 1)},
      {"avx512f", zmm && (b7 >> 16 & 1)},
      {"avx512dq", zmm && (b7 >> 17 & 1)},
      {"avx512bw", zmm && (b7 >> 30 & 1)},
      {"avx512vl", zmm && (b7 >> 31 & 1)},
      {"avx512_vbmi", zmm && (c7 >> 1 & 1)},
      {"avx512_vnni", zmm && (c7 >> 11 & 1)},
      {"avx512_bf16", zmm && (a71 >> 5 & 1)},
      {"amx_int8", amx && (d7 >> 25 & 1) && may_use_matrix_registers()},
  };
  std::vector<std::string> features;
  for (const auto& [name, present] : known) {
    if (present) features.emplace_back(name);
  }
  return features;
}

#elif defined(__aarch64__)

std::vector<std::string> cpu_features() {
  const unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  struct Known {
    const char* name;
    int word, bit;  // of Linux's uapi asm/hwcap.h
  };
  constexpr Known known[] = {{"asimd", 0, 1}, {"fphp", 0, 9}, {"asimdhp", 0, 10}, {"asimddp", 0, 20},
                             {"sve", 0, 22},  {"sve2", 1, 1}, {"i8mm", 1, 13},    {"bf16", 1, 14}};
  std::vector<std::string> features;
  for (const Known& feature : known) {
    if (words[feature.word] >> feature.bit & 1) features.emplace_back(feature.name);
  }
  return features;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

std::string cpu_model_name() {
  std::string implementer, part;
  for (const std::string& line : split(read_file("/proc/cpuinfo"), '\n')) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = line.substr(colon + 2);
    if (key == "model name") return value;
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") part = value;
  }
  const std::string board = read_file("/proc/device-tree/model");  // "Raspberry Pi 5 Model B Rev 1.0" and a NUL
  if (!board.empty()) return board.c_str();
  if (!part.empty()) return "Arm implementer " + implementer + " part " + part;
  return "unknown";
}

std::vector<int> affinity() {
  // The kernel refuses a mask smaller than its own, which may hold more than the 1 024 CPUs of a cpu_set_t.
  for (int size = 1024; size <= 1 << 16; size *= 2) {
    cpu_set_t* mask = CPU_ALLOC(size);
    if (!mask) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, mask);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, mask) == 0) {
      for (int cpu = 0; cpu < size; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(mask);
    if (!cpus.empty()) return cpus;
  }
  std::vector<int> cpus(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  for (std::size_t i = 0; i < cpus.size(); ++i) cpus[i] = static_cast<int>(i);
  return cpus;
}

const Kernels* find_kernels(const std::string& isa) {
#if defined(__x86_64__)
  if (isa == "amx_int8") return &amx_int8::kernels;
  if (isa == "avx512_vnni") return &avx512_vnni::kernels;
  if (isa == "avx_vnni") return &avx_vnni::kernels;
  if (isa == "avx2") return &avx2::kernels;
#elif defined(__aarch64__)
  if (isa == "neon") return &neon::kernels;
#endif
  return isa == "scalar" ? &scalar::kernels : nullptr;
}

std::string number(double value) {
  std::ostringstream text;
  text << value;
  return std::move(text).str();
}

std::string plural(int count, const char* singular, const char* plural) {
  return std::to_string(count) + " " + (count == 1 ? singular : plural);
}

}  // namespace

int count_physical_cores(const std::vector<int>& cpus, const std::string& root) {
  std::set<std::string> cores;  // each named by the list of its threads
  for (int cpu : cpus) {
    const std::string name = "/cpu" + std::to_string(cpu);
    const std::string siblings = read_file(root + "/sys/devices/system/cpu" + name + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

CpuInfo detect_cpu() {
  const std::vector<int> cpus = affinity();
  CpuQuota quota = read_cpu_quota();
  CpuInfo info;
  info.model_name = cpu_model_name();
  info.features = cpu_features();
  info.logical_cpus = static_cast<int>(cpus.size());
  info.physical_cores = count_physical_cores(cpus);
  info.quota_cpus = quota.cpus;
  info.quota_source = std::move(quota.source);
  return info;
}

ThreadChoice choose_threads(const CpuInfo& cpu) {
  const int cores = std::max(1, std::min(cpu.logical_cpus, cpu.physical_cores));
  const bool by_quota = cpu.quota_cpus > 0 && cpu.quota_cpus < cores;
  const int threads = by_quota ? std::max(1, static_cast<int>(cpu.quota_cpus)) : cores;
  const std::string quota =
      cpu.quota_cpus > 0 ? "CPU quota " + number(cpu.quota_cpus) + " in " + cpu.quota_source : "no CPU quota";
  const std::string physical = plural(cores, "physical core", "physical cores");
  const std::string logical = plural(cpu.logical_cpus, "logical CPU", "logical CPUs");
  return {threads, plural(threads, "thread", "threads") + ": " + (by_quota ? quota : physical) + " (" +
                       (by_quota ? physical + ", " + logical : logical + ", " + quota) + ")"};
}

std::vector<std::string> usable_isas() {
  const std::vector<std::string> features = cpu_features();
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return contains(features, name); });
  };
  std::vector<std::string> isas;
#if defined(__x86_64__)
  if (has({"avx2", "fma", "f16c"})) {
    if (has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})) {
      if (has({"amx_int8"})) isas.emplace_back("amx_int8");
      isas.emplace_back("avx512_vnni");
    }
    if (has({"avx_vnni"})) isas.emplace_back("avx_vnni");
    isas.emplace_back("avx2");
  }
#elif defined(__aarch64__)
  if (has({"asimd", "asimddp", "asimdhp", "fphp"})) isas.emplace_back("neon");
#else
  (void)has;
#endif
  isas.emplace_back("scalar");
  return isas;
}

const Kernels& select_kernels(const std::string& isa) {
  const std::vector<std::string> usable = usable_isas();
  const char* environment = std::getenv("TYPEBAR_ISA");
  const bool from_environment = isa.empty() && environment && *environment;
  const std::string wanted = from_environment ? environment : isa.empty() ? usable.front() : isa;
  if (!contains(usable, wanted)) {
    std::string names;
    for (const std::string& name : usable) names += (names.empty() ? "" : ", ") + name;
    throw std::invalid_argument((from_environment ? "TYPEBAR_ISA=" : "isa=") + wanted +
                                ": this machine and build cannot run that; usable here: " + names);
  }
  return *find_kernels(wanted);
}

}  // namespace typebar
