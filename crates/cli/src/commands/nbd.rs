//! `buttress nbd`: a device for clients of the Network Block Device protocol, until it is stopped.
//!
//! # Failure
//!
//! The program succeeds only if every acknowledged write is durable when the program ends. Clients
//! that still have the export open lose their connection.

use std::io::Write;
use std::path::PathBuf;

use buttress_block::OpenOptions;
use buttress_nbd::{Address, Export, Options, Server, Stopper};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cached::{self, Cached};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live::{Live, Subject};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image file or block device to serve.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    cached: Cached,
    /// Address to listen on: unix:PATH, 127.0.0.1:PORT, [::1]:PORT or localhost:PORT. Can be given
    /// several times. Every user of this machine can connect to a port; a socket has the
    /// permissions of a file.
    #[arg(long, required = true, value_name = "ADDRESS")]
    listen: Vec<Address>,
    /// Serve read-only. Other programs can then read the image as well.
    #[arg(long, short)]
    read_only: bool,
    /// Name of the export. Clients that give no name get this export as well.
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// Bypass the kernel's page cache for the image.
    #[arg(long)]
    direct: bool,
    /// Also listen on addresses that other machines can reach. There is no encryption and no
    /// authentication.
    #[arg(long)]
    allow_remote: bool,
    /// Maximum number of clients.
    #[arg(long, value_name = "N", default_value_t = Options::default().connections)]
    connections: usize,
    /// Maximum number of parallel requests of each client.
    #[arg(long, value_name = "N", default_value_t = Options::default().threads)]
    threads: usize,
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document<'a> {
    uris: &'a [String],
    size_bytes: u64,
    read_only: bool,
    pid: u32,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    // Signals that arrive from here on are kept until the thread for signals starts.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context(|| "watching for signals")?;
    crate::interrupted::leave_to_server();
    let how = if args.read_only { OpenOptions::READ } else { OpenOptions::WRITE };
    let how = OpenOptions { direct: args.direct, ..how };
    let opened = closing::open_device(&args.image, how)?;
    let (device, cache) = args.cached.wrap(opened.device(), how)?;
    let export = Export::new(device, args.export, args.read_only).context(String::new)?;
    let (size_bytes, read_only) = (export.len(), export.read_only());
    let Args { connections, threads, allow_remote, .. } = args;
    let options = Options { connections, threads, allow_remote, ..Options::default() };
    let server = Server::bind(export, &args.listen, options).context(String::new)?;
    watch(signals, server.stopper())?;
    let uris = server.uris();
    if ui.json() {
        let pid = std::process::id();
        ui.document(&Document { uris: &uris, size_bytes, read_only, pid })?;
    } else {
        for uri in &uris {
            writeln!(std::io::stdout(), "{uri}").context(|| "standard output")?;
        }
    }
    let image = closing::full_name(&args.image).unwrap_or_else(|_| args.image.clone());
    let subject = Subject::of(image, args.cached.full_path());
    let mut live = Live::new(Subject { uris, ..subject });
    if let Some(cache) = &cache {
        live.add_cache(cache);
    }
    live.add_device(&opened);
    let _live = live.listen();
    let served = server.serve().context(|| args.image.display().to_string());
    if let Some(cache) = cache {
        cached::close(&cache)?;
    }
    served?;
    opened.release().map_err(Failure::of_remote)?;
    Ok(Exit::Success)
}

/// Stops the server at the first signal, and does not wait for clients from the second on.
fn watch(mut signals: Signals, stopper: Stopper) -> Result<()> {
    let work = move || {
        for _ in signals.forever() {
            stopper.stop();
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(work);
    thread.map(drop).context(|| "watching for signals")
}
