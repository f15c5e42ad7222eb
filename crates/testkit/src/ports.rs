//! Ports for test servers of many processes at the same time.
//!
//! To ask the system for a free port and pass it to a server later is a race. Here a port is claimed by locking a file that
//! is named after it; the lock ends with its process. The ports are below the range that the system uses for outgoing
//! connections.

use std::fs::{self, File, TryLockError};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;

use crate::error::StartError;

const FIRST_PORT: u32 = 20_000;
const PORT_COUNT: u32 = 10_000;

/// A port that is reserved until this value is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: File,
}

impl Port {
    /// Claims a loopback port that nobody listens on.
    pub fn claim() -> Result<Self, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = folder();
        fs::create_dir_all(&folder).map_err(StartError::system("create the folder of claimed ports"))?;
        // Processes start at different ports, so that they rarely collide.
        let start = std::process::id().wrapping_mul(97);
        for _ in 0..PORT_COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let Ok(number) = u16::try_from(FIRST_PORT + start.wrapping_add(step) % PORT_COUNT) else {
                continue;
            };
            let claim =
                File::create(folder.join(number.to_string())).map_err(StartError::system("claim a port"))?;
            match claim.try_lock() {
                Ok(()) if TcpListener::bind(("127.0.0.1", number)).is_ok() => {
                    return Ok(Self { number, _claim: claim });
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(StartError::system("lock a port's file")(error));
                }
            }
        }
        Err(StartError::system("claim a port")(std::io::ErrorKind::AddrInUse.into()))
    }

    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The folder of this user's claims. The empty files stay for later claims.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("ade-test-ports-{}", geteuid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_port_is_locked_until_dropped() {
        let port = Port::claim().expect("claimed");
        let file = folder().join(port.number().to_string());
        let try_lock = || File::open(&file).expect("the claim is a file").try_lock();
        assert!(matches!(try_lock(), Err(TryLockError::WouldBlock)));
        drop(port);
        try_lock().expect("released");
    }
}
