//! What the machine gives the process: memory, by the cgroup or the kernel.

use std::fs;

/// Bytes of memory that the process may use: the smaller of its cgroup's bound and the machine's memory. 1 GiB if
/// neither can be read.
pub fn memory_bytes() -> u64 {
    let cgroup = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let bounds = cgroup.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    bounds.chain(machine).min().unwrap_or(1 << 30)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_meminfo_is_in_kib() {
        assert_eq!(mem_total("MemTotal:       24586204 kB\nMemFree: 1 kB\n"), Some(24_586_204 * 1024));
        assert_eq!(mem_total("nothing"), None);
    }
}
