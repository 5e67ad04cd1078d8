//! The server, over real sockets, with a client that can break the protocol.

mod client;
mod durable;
mod hostile;
mod linux;
mod model;
mod stop;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use buttress_block::Device;
use buttress_nbd::{Address, Error, Export, Figures, Options, Server, Stopper};

use crate::client::Client;

/// A server on a unix socket of its own.
struct Served {
    folder: tempfile::TempDir,
    export: Arc<Export>,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<Figures, Error>>>,
}

impl Served {
    fn new(device: Arc<dyn Device>) -> Self {
        Self::with(device, false, Options::default())
    }

    fn with(device: Arc<dyn Device>, read_only: bool, options: Options) -> Self {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let address = Address::Unix(folder.path().join("socket"));
        let export = Export::new(device, "disk", read_only).expect("a short name");
        let server = Server::bind(export, &[address], options).expect("a new socket");
        let (export, stopper) = (server.export(), server.stopper());
        let thread = Some(std::thread::spawn(move || server.serve()));
        Self { folder, export, stopper, thread }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket().display())
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket())
    }

    fn stop(mut self) -> Result<Figures, Error> {
        self.stopper.stop();
        self.thread.take().expect("it is ended once").join().expect("no panic")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
