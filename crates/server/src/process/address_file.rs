//! The file in the data folder that names the address of this server. Commands on this machine send the bootstrap token to this
//! address and to no other.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ade_config::ADDRESS_FILE;
use ade_store::private_file;

/// Removes the file when dropped: nobody answers there any more.
#[derive(Debug)]
pub(super) struct AddressFile(PathBuf);

impl AddressFile {
    pub(super) fn write(data: &Path, address: SocketAddr) -> io::Result<Self> {
        let (path, temporary) = (data.join(ADDRESS_FILE), data.join("address.new"));
        let mut file = private_file().truncate(true).open(&temporary)?;
        writeln!(file, "http://{}", reachable(address))?;
        std::fs::rename(&temporary, &path)?;
        Ok(Self(path))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(%error, "cannot remove {}", self.0.display());
        }
    }
}

/// A server that listens on all addresses is reached on this machine by the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_an_address_of_this_machine_while_the_server_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        for (listen, url) in [
            ("0.0.0.0:8300", "http://127.0.0.1:8300\n"),
            ("[::]:8300", "http://[::1]:8300\n"),
            ("192.0.2.1:80", "http://192.0.2.1:80\n"),
        ] {
            let file =
                AddressFile::write(folder.path(), listen.parse().expect("an address")).expect("written");
            assert_eq!(std::fs::read_to_string(folder.path().join(ADDRESS_FILE)).expect("readable"), url);
            drop(file);
            assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
        }
    }
}
