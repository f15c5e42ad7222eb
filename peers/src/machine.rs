//! Description of the machine: figures mean nothing without it. A copy of the one in `ade bench`, without its version.

use std::fs;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_mib: u64,
    kernel: String,
    build: &'static str,
}

impl Machine {
    pub(crate) fn detect() -> Self {
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
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }

    pub(crate) fn summary(&self) -> String {
        let Self { cpu, cores, memory_mib, kernel, build } = self;
        let gib = memory_mib / 1024;
        format!("{cpu}, {cores} cores, {gib} GiB, {kernel}; {build} build")
    }
}

/// Versions of the client crates in Cargo.lock.
pub(crate) fn client_crates() -> Vec<(String, String)> {
    let names = ["etcd-client", "redis", "rslock", "tokio-postgres"];
    let lock = include_str!("../Cargo.lock");
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some((field("name")?, field("version")?))
    });
    let found = packages.filter(|(name, _)| names.contains(&name.as_str()));
    found.map(|(name, version)| (format!("crate {name}"), version)).collect()
}
