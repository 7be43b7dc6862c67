#include <doctest/doctest.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "cpu.h"

using namespace typebar;

namespace {

// A machine's /proc and /sys in a folder.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "typebar-cpu-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  FakeRoot& write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path_ + path).parent_path());
    std::ofstream(path_ + path) << text;
    return *this;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::string kMountV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

class IsaVariable {
 public:
  explicit IsaVariable(const char* value) {
    const char* previous = std::getenv("TYPEBAR_ISA");
    had_ = previous != nullptr;
    if (had_) previous_ = previous;
    setenv("TYPEBAR_ISA", value, 1);
  }
  ~IsaVariable() { had_ ? setenv("TYPEBAR_ISA", previous_.c_str(), 1) : unsetenv("TYPEBAR_ISA"); }
  IsaVariable(const IsaVariable&) = delete;
  IsaVariable& operator=(const IsaVariable&) = delete;

 private:
  bool had_;
  std::string previous_;
};

}  // namespace

TEST_CASE("no quota without cgroups, and with quotas of 'max' and -1") {
  FakeRoot none;
  CHECK(read_cpu_quota(none.path()).cpus == 0);
  CHECK(read_cpu_quota(none.path()).source == "");

  FakeRoot v2;
  v2.write("/proc/self/cgroup", "0::/user.slice\n").write("/proc/self/mountinfo", kMountV2);
  v2.write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  CHECK(read_cpu_quota(v2.path()).cpus == 0);

  FakeRoot v1;
  v1.write("/proc/self/cgroup", "4:cpu,cpuacct:/\n");
  v1.write("/proc/self/mountinfo", "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  v1.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  v1.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(read_cpu_quota(v1.path()).cpus == 0);
}

TEST_CASE("the tightest cgroup v2 on the way up counts") {
  FakeRoot root;
  root.write("/proc/self/cgroup", "0::/a/b/c\n").write("/proc/self/mountinfo", kMountV2);
  root.write("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
  CHECK(read_cpu_quota(root.path()).cpus == 4);
  root.write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK(read_cpu_quota(root.path()).cpus == 1.5);
  CHECK(read_cpu_quota(root.path()).source == root.path() + "/sys/fs/cgroup/a/cpu.max");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "25000 50000\n");
  CHECK(read_cpu_quota(root.path()).cpus == 0.5);
}

TEST_CASE("cgroup v1, in a container that sees only its own group") {
  FakeRoot root;
  root.write("/proc/self/cgroup", "9:name=systemd:/docker/7f2a\n3:cpuacct,cpu:/docker/7f2a\n2:cpuset:/docker/7f2a\n");
  root.write("/proc/self/mountinfo",
             "40 31 0:40 /docker/7f2a /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
             "41 31 0:41 /docker/7f2a /sys/fs/cgroup/cpu\\040acct ro master:3 - cgroup cgroup rw,cpu,cpuacct\n");
  root.write("/sys/fs/cgroup/cpu acct/cpu.cfs_quota_us", "200000\n");
  root.write("/sys/fs/cgroup/cpu acct/cpu.cfs_period_us", "80000\n");
  root.write("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n").write("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "1\n");
  CHECK(read_cpu_quota(root.path()).cpus == 2.5);
}

TEST_CASE("cgroup v1 and v2 together: the tighter") {
  FakeRoot root;
  root.write("/proc/self/cgroup", "1:cpu:/job\n0::/job\n");
  root.write("/proc/self/mountinfo",
             "33 31 0:30 / /cg/cpu rw - cgroup cgroup rw,cpu\n34 31 0:31 / /cg/unified rw - cgroup2 none rw\n");
  root.write("/cg/cpu/job/cpu.cfs_quota_us", "300000").write("/cg/cpu/job/cpu.cfs_period_us", "100000");
  CHECK(read_cpu_quota(root.path()).cpus == 3);
  root.write("/cg/unified/job/cpu.max", "200000 100000");
  CHECK(read_cpu_quota(root.path()).cpus == 2);
}

TEST_CASE("a group outside of what the mount shows falls back to the mount point") {
  for (const std::string group : {"/../other", "/docker/ab", "/elsewhere"}) {
    FakeRoot root;
    root.write("/proc/self/cgroup", "0::" + group + "\n");
    root.write("/proc/self/mountinfo", "31 23 0:28 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root.write("/sys/fs/cgroup/cpu.max", "700000 100000\n");
    CHECK(read_cpu_quota(root.path()).cpus == 7);
  }
}

TEST_CASE("odd or damaged files do no harm") {
  const char* const texts[] = {"", "\n", "max", "0 100000", "100000", "100000 0", "-5 -5", "abc def", "1e999 1"};
  for (const std::string text : texts) {
    FakeRoot root;
    root.write("/proc/self/cgroup", "0::/x\n0\n::\n:\ngarbage\n")
        .write("/proc/self/mountinfo", "-\n - \na b - c\n" + kMountV2);
    root.write("/sys/fs/cgroup/x/cpu.max", text);
    INFO(text);
    const double cpus = read_cpu_quota(root.path()).cpus;
    CHECK(cpus == 0);
  }
}

TEST_CASE("hardware threads of one core count once, within the mask") {
  FakeRoot root;
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int first = cpu % 4;
    root.write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
               std::to_string(first) + "," + std::to_string(first + 4) + "\n");
  }
  CHECK(count_physical_cores({0, 1, 2, 3, 4, 5, 6, 7}, root.path()) == 4);
  CHECK(count_physical_cores({0, 4}, root.path()) == 1);
  CHECK(count_physical_cores({1, 2, 4}, root.path()) == 3);
  FakeRoot unknown;
  CHECK(count_physical_cores({0, 1, 2}, unknown.path()) == 3);
  CHECK(count_physical_cores({}, unknown.path()) == 1);
}

TEST_CASE("the number of threads and its reason") {
  CpuInfo cpu;
  cpu.logical_cpus = 8;
  cpu.physical_cores = 4;
  CHECK(choose_threads(cpu).threads == 4);
  CHECK(choose_threads(cpu).reason == "4 threads: 4 physical cores (8 logical CPUs, no CPU quota)");
  cpu.quota_source = "/sys/fs/cgroup/cpu.max";
  const auto threads_at = [&](double quota) {
    cpu.quota_cpus = quota;
    return choose_threads(cpu).threads;
  };
  CHECK(threads_at(2.5) == 2);
  CHECK(choose_threads(cpu).reason ==
        "2 threads: CPU quota 2.5 in /sys/fs/cgroup/cpu.max (4 physical cores, 8 logical CPUs)");
  CHECK(threads_at(0.3) == 1);
  CHECK(choose_threads(cpu).reason.rfind("1 thread: CPU quota 0.3", 0) == 0);
  CHECK(threads_at(3.99) == 3);
  CHECK(threads_at(4) == 4);
  CHECK(threads_at(64) == 4);
  CHECK(choose_threads({}).threads == 1);
}

TEST_CASE("this machine") {
  const CpuInfo cpu = detect_cpu();
  CHECK(!cpu.model_name.empty());
  CHECK(cpu.model_name.find('\n') == std::string::npos);
  CHECK(cpu.physical_cores >= 1);
  CHECK(cpu.physical_cores <= cpu.logical_cpus);
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) CHECK(cpu.logical_cpus == CPU_COUNT(&mask));
  const int threads = choose_threads(cpu).threads;
  CHECK(threads >= 1);
  CHECK(threads <= cpu.physical_cores);
}

TEST_CASE("the affinity mask is obeyed") {
  cpu_set_t all, one;
  CPU_ZERO(&all);
  CPU_ZERO(&one);
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const CpuInfo cpu = detect_cpu();
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK(cpu.logical_cpus == 1);
  CHECK(choose_threads(cpu).threads == 1);
}

TEST_CASE("kernels by name, by environment, and the best by default") {
  const std::vector<std::string> usable = usable_isas();
  REQUIRE(!usable.empty());
  CHECK(usable.back() == "scalar");
  CHECK(std::count(usable.begin(), usable.end(), "scalar") == 1);
  for (const std::string& isa : usable) CHECK(select_kernels(isa).name == isa);
  {
    const IsaVariable variable("");
    CHECK(select_kernels().name == usable.front());
  }
  {
    const IsaVariable variable("scalar");
    CHECK(std::string(select_kernels().name) == "scalar");
    CHECK(select_kernels(usable.front()).name == usable.front());  // an argument goes before the environment
  }
  {
    const IsaVariable variable("mmx");
    CHECK_THROWS_WITH_AS(select_kernels(), doctest::Contains("TYPEBAR_ISA=mmx"), std::invalid_argument);
    CHECK_THROWS_WITH_AS(select_kernels(), doctest::Contains("scalar"), std::invalid_argument);
  }
#if defined(__x86_64__)
  const std::string foreign = "neon";
#else
  const std::string foreign = "avx2";
#endif
  for (const std::string& isa : {foreign, std::string("AVX2"), std::string("scalar "), std::string("\0x", 2)}) {
    CHECK_THROWS_AS(select_kernels(isa), std::invalid_argument);
  }
}

#if defined(__x86_64__)
TEST_CASE("features agree with the compiler's run-time check") {
  const CpuInfo cpu = detect_cpu();
  const auto has = [&](const char* name) {
    return std::find(cpu.features.begin(), cpu.features.end(), name) != cpu.features.end();
  };
  __builtin_cpu_init();
  CHECK(has("sse4_2") == (__builtin_cpu_supports("sse4.2") != 0));
  CHECK(has("avx") == (__builtin_cpu_supports("avx") != 0));
  CHECK(has("fma") == (__builtin_cpu_supports("fma") != 0));
  CHECK(has("avx2") == (__builtin_cpu_supports("avx2") != 0));
  CHECK(has("avx512f") == (__builtin_cpu_supports("avx512f") != 0));
  CHECK(has("avx512bw") == (__builtin_cpu_supports("avx512bw") != 0));
  CHECK(has("avx512_vnni") == (__builtin_cpu_supports("avx512vnni") != 0));
}
#endif

TEST_CASE("read bandwidth is positive and within reason") {
  for (int threads : {1, 2}) {
    const double bandwidth = measure_read_bandwidth(threads, 0.02);
    CHECK(bandwidth > 0.01);
    CHECK(bandwidth < 10000);
  }
  CHECK_THROWS_AS(measure_read_bandwidth(0, 0.1), std::invalid_argument);
  for (double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(measure_read_bandwidth(1, seconds), std::invalid_argument);
  }
}
