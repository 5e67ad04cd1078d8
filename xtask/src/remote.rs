//! `cargo xtask remote`: volumes on real distributed stores, which are brought up for the run.

use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};

/// Brings up a monitor, three OSDs and a gateway in a folder, runs the tests, and stops all these
/// daemons.
const CEPH: &str = include_str!("remote/ceph.sh");

/// The store.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Ceph with its RADOS gateway. Needs root, and Debian's packages ceph-mon, ceph-osd, radosgw
    /// and ceph-common.
    Ceph,
}

/// Which store, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The store to bring up.
    store: Kind,
    /// Seconds of load, during which one disk of the store stops and comes back.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The first of a hundred ports of the loopback.
    #[arg(long, default_value_t = 20300)]
    port: u16,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let script = match options.store {
        Kind::Ceph => CEPH,
    };
    let (seconds, port) = (options.seconds.to_string(), options.port.to_string());
    match Command::new("bash").args(["-c", script, "ceph", &seconds, &port]).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bash: {error}");
            ExitCode::FAILURE
        }
    }
}
