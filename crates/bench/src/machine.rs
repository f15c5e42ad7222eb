//! Description of the machine: figures mean nothing without it.

use std::fs;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_mib: u64,
    kernel: String,
    ade_version: &'static str,
    build: &'static str,
}

impl Machine {
    pub(super) fn detect() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or_default();
        let system = rustix::system::uname();
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: kib / 1024,
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            ade_version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }

    #[must_use]
    pub fn summary(&self) -> String {
        let Self { cpu, cores, memory_mib, kernel, ade_version, build } = self;
        let gib = memory_mib / 1024;
        format!("{cpu}, {cores} cores, {gib} GiB, {kernel}; ade {ade_version} ({build} build)")
    }
}
