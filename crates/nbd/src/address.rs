//! The addresses of a server: parsing addresses and listening at them.
//!
//! # Invariants
//!
//! - **A1** The server listens at an address that other machines can reach only if an option allows
//!   this.
//! - **A2** A socket file is removed only if no server answers at the file, or if this server made
//!   the file.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::Error;
use crate::stream::Stream;

/// The protocol's registered port.
const PORT: u16 = 10809;

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket file: every process that may write the file may connect.
    Unix(PathBuf),
    /// An address of the machine and a port, or zero for any free port.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = Error;

    /// Reads `unix:PATH`, `127.0.0.1:PORT`, `[::1]:PORT`, `localhost:PORT`, or any of these without
    /// the port.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Address(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if text == "localhost" {
            return Ok(Self::Tcp((local, PORT).into()));
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return port.parse().map(|port| Self::Tcp((local, port).into())).map_err(|_| wrong());
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::Tcp((ip, PORT).into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix { listener: UnixListener, file: SocketFile },
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at an address, or returns the reason why it cannot listen.
    pub(crate) fn bind(address: &Address, allow_remote: bool) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: address.to_string(), source };
        match address {
            Address::Tcp(at) => {
                if !at.ip().to_canonical().is_loopback() && !allow_remote {
                    return Err(Error::NotLocal(*at));
                }
                let listener = TcpListener::bind(at).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {
                        remove_stale(path).map_err(|why| why.unwrap_or_else(|| failed(error)))?;
                        UnixListener::bind(path).map_err(failed)?
                    }
                    bound => bound.map_err(failed)?,
                };
                let file = SocketFile::of(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Unix { listener, file })
            }
        }
    }

    /// Accepts the next client, if one waits.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix { listener, .. } => {
                listener.accept().map(|(stream, _)| Stream::Unix(stream))
            }
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
        }
    }

    /// The URI of the export, as clients accept it.
    pub(crate) fn uri(&self, export: &str) -> String {
        let export = escaped(export.as_bytes());
        match self {
            Self::Unix { file, .. } => {
                let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
                let path = escaped(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///{export}?socket={path}")
            }
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(at) => format!("nbd://{at}/{export}"),
                Err(_) => format!("nbd:///{export}"),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A socket file that this server made. The file is removed when this value is dropped (A2).
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        // The working directory may have changed when the file is removed, so the path is absolute.
        Ok(Self { path: std::path::absolute(path)?, identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path);
        if now.is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a server that was killed. `Err(None)` means that the socket is not stale,
/// or that this function cannot find out.
fn remove_stale(path: &Path) -> Result<(), Option<Error>> {
    let metadata = std::fs::symlink_metadata(path).map_err(|_| None)?;
    if !metadata.file_type().is_socket() {
        return Err(Some(Error::NotASocket(path.to_owned())));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Some(Error::Taken(path.to_owned()))),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|_| None)
        }
        Err(_) => Err(None),
    }
}

/// Text as a part of a URI.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Usual spellings of addresses are accepted, and impossible ones are refused.
    #[test]
    fn reads_addresses() {
        let tcp = |text: &str| Address::Tcp(text.parse().expect("an address"));
        let cases = [
            ("127.0.0.1:7", tcp("127.0.0.1:7")),
            ("127.0.0.1", tcp("127.0.0.1:10809")),
            ("localhost", tcp("127.0.0.1:10809")),
            ("localhost:9", tcp("127.0.0.1:9")),
            ("[::1]:9", tcp("[::1]:9")),
            ("[::1]", tcp("[::1]:10809")),
            ("unix:/run/a:b", Address::Unix("/run/a:b".into())),
        ];
        for (text, address) in cases {
            assert_eq!(text.parse::<Address>().expect(text), address);
        }
        for text in ["", "unix:", "here", "localhost:x", "127.0.0.1:99999", "/run/socket"] {
            assert!(matches!(text.parse::<Address>(), Err(Error::Address(_))), "{text}");
        }
    }

    /// A1: other addresses need an explicit option.
    #[test]
    fn refuses_what_is_not_local() {
        let everywhere = "0.0.0.0:0".parse().expect("an address");
        let error = Listener::bind(&everywhere, false).expect_err("not local");
        assert!(matches!(error, Error::NotLocal(_)), "{error}");
        Listener::bind(&everywhere, true).expect("asked for");
        let mapped = "[::ffff:127.0.0.1]:0".parse().expect("an address");
        Listener::bind(&mapped, false).expect("local, written in another way");
    }

    /// A2: the socket of a dead server is replaced. The socket of a living server, or another file,
    /// is not replaced.
    #[test]
    fn takes_stale_sockets_only() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let path = dir.path().join("a socket");
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).expect("a new socket"));
        assert!(path.exists(), "it was left behind");

        let first = Listener::bind(&address, false).expect("it is stale");
        assert!(first.uri("a b").starts_with("nbd+unix:///a%20b?socket=/"), "{}", first.uri("a b"));
        let error = Listener::bind(&address, false).expect_err("a server listens");
        assert!(matches!(error, Error::Taken(_)), "{error}");
        drop(first);
        assert!(!path.exists(), "its server removes it");

        std::fs::write(&path, "precious").expect("a file");
        let error = Listener::bind(&address, false).expect_err("a file");
        assert!(matches!(error, Error::NotASocket(_)), "{error}");
        assert!(path.exists());
    }
}
