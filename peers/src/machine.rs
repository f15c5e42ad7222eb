//! Where figures were measured: without it they mean nothing. The same as in `ade bench`, which is not a library.

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
    /// What this machine says about itself.
    pub(crate) fn look() -> Self {
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

    /// In one line.
    pub(crate) fn line(&self) -> String {
        let Self { cpu, cores, memory_mib, kernel, build } = self;
        let gib = memory_mib / 1024;
        format!("{cpu}, {cores} cores, {gib} GiB, {kernel}; {build} build")
    }
}

/// The clients in Rust, as they are locked.
pub(crate) fn crates() -> Vec<(String, String)> {
    let wanted = ["etcd-client", "redis", "rslock", "tokio-postgres"];
    let lock = include_str!("../Cargo.lock");
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some((field("name")?, field("version")?))
    });
    let wanted = packages.filter(|(name, _)| wanted.contains(&name.as_str()));
    wanted.map(|(name, version)| (format!("crate {name}"), version)).collect()
}
