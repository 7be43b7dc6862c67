#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "cpu.h"
#include "system_files.h"

namespace typebar {
namespace {

// mountinfo writes a space in a path as \040.
std::string unescape_octal(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// cpu.max is "200000 100000" or "max 100000"; version 1 has two files, −1 for none. Microseconds; 0 when unlimited.
double quota_in(const std::string& folder, bool version2, std::string* source) {
  double quota = -1, period = -1;
  *source = folder + (version2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  std::istringstream(read_file(*source)) >> quota >> period;  // "max" fails to parse and leaves the quota ≤ 0
  if (!version2) std::istringstream(read_file(folder + "/cpu.cfs_period_us")) >> period;
  return quota > 0 && period > 0 ? quota / period : 0;
}

// One hierarchy that limits the CPU: where it is mounted, which part of it that mount shows, and our group in it.
struct Hierarchy {
  bool version2;
  std::string mount_point, mount_root, group;
};

std::vector<Hierarchy> cpu_hierarchies(const std::string& root) {
  std::string group1, group2;  // "3:cpu,cpuacct:/docker/7f2a" and "0::/user.slice"
  bool has1 = false, has2 = false;
  for (const std::string& line : split(read_file(root + "/proc/self/cgroup"), '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      group2 = line.substr(second + 1);
      has2 = true;
    } else if (contains(split(controllers, ','), "cpu")) {
      group1 = line.substr(second + 1);
      has1 = true;
    }
  }
  // "36 35 98:0 /root /mount/point rw,noatime shared:1 - cgroup2 source rw,…"
  std::vector<Hierarchy> found;
  for (const std::string& line : split(read_file(root + "/proc/self/mountinfo"), '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> left = split(line.substr(0, dash), ' ');
    const std::vector<std::string> right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool version2 = right[0] == "cgroup2";
    if (version2 ? !has2 : !(has1 && right[0] == "cgroup" && contains(split(right[2], ','), "cpu"))) continue;
    found.push_back({version2, unescape_octal(left[4]), unescape_octal(left[3]), version2 ? group2 : group1});
  }
  return found;
}

// The group's folder below the mount point; the mount point itself where the group lies outside what the mount shows,
// as in a container that was given only its own group.
std::string group_below_mount(const Hierarchy& hierarchy) {
  const std::string& mount = hierarchy.mount_root;
  std::string group = hierarchy.group;
  if (group.find("/..") != std::string::npos) return "";
  if (mount != "/") {
    if (group.compare(0, mount.size(), mount) != 0) return "";
    group.erase(0, mount.size());
    if (!group.empty() && group[0] != '/') return "";  // /docker/ab is not below /docker/a
  }
  return group == "/" ? "" : group;
}

}  // namespace

CpuQuota read_cpu_quota(const std::string& root) {
  CpuQuota tightest;
  for (const Hierarchy& hierarchy : cpu_hierarchies(root)) {
    // A group is also bound by every group above it.
    std::string group = group_below_mount(hierarchy);
    for (;;) {
      std::string source;
      const double cpus = quota_in(root + hierarchy.mount_point + group, hierarchy.version2, &source);
      if (cpus > 0 && (tightest.cpus == 0 || cpus < tightest.cpus)) tightest = {cpus, source};
      if (group.empty()) break;
      const std::size_t slash = group.rfind('/');
      group.erase(slash == std::string::npos ? 0 : slash);
    }
  }
  return tightest;
}

}  // namespace typebar
