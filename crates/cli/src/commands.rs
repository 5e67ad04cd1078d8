//! The verbs. Each verb has its own file, with its arguments and its work.

pub(crate) mod balance;
mod cache;
mod cat;
pub(crate) mod check;
mod completions;
mod compsize;
mod convert;
mod cp;
mod demo;
pub(crate) mod device;
mod df;
pub(crate) mod du;
pub(crate) mod dump;
pub(crate) mod filesystem;
mod fstrim;
mod info;
mod ln;
mod ls;
mod manual;
mod map;
mod metrics;
mod mkdir;
pub(crate) mod mount;
mod mv;
mod nbd;
pub(crate) mod property;
pub(crate) mod qgroup;
pub(crate) mod quota;
pub(crate) mod receive;
mod remote;
pub(crate) mod rescue;
pub(crate) mod restore;
mod rm;
pub(crate) mod scrub;
pub(crate) mod send;
mod stat;
mod stats;
mod subvolume;
mod top;
mod tree;
pub(crate) mod umount;
mod undelete;

use buttress_mkfs::verb as mkfs;
use clap::Subcommand;

use crate::exit::{Exit, Result};
use crate::ui::Ui;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a volume on an image file or a block device.
    Mkfs(mkfs::Args),
    /// Mount a volume through FUSE.
    Mount(mount::Args),
    /// Unmount a volume, and wait until all changes are durable.
    Umount(umount::Args),
    /// Serve an image or block device to NBD clients.
    Nbd(nbd::Args),
    /// List a directory of a volume.
    Ls(ls::Args),
    /// Print the content of files of a volume.
    Cat(cat::Args),
    /// Copy files into a volume, out of it, or within it.
    Cp(cp::Args),
    /// Create directories in a volume.
    Mkdir(mkdir::Args),
    /// Remove files and directories from a volume.
    Rm(rm::Args),
    /// Rename or move files within a volume.
    Mv(mv::Args),
    /// Create hard or symbolic links in a volume.
    Ln(ln::Args),
    /// Show the attributes of a file of a volume.
    Stat(stat::Args),
    /// Show the used and free space of a volume.
    Df(df::Args),
    /// Show how much space files and folders take on the devices, and how much they share.
    Du(du::Args),
    /// Show how well files are compressed.
    Compsize(compsize::Args),
    /// Draw a map of a volume: where everything is on the devices.
    Map(map::Args),
    /// List a directory of a volume as a tree.
    Tree(tree::Args),
    /// Defragment files, change the label, and resize devices of a volume.
    Filesystem(filesystem::Args),
    /// Show and set properties of subvolumes, files and directories.
    Property(property::Args),
    /// Make files with content that never changes, and show their digests.
    Fsverity(buttress_control::fsverity::Args),
    /// Show the superblock, features, devices, space and trees of a volume.
    Info(info::Args),
    /// Check a volume for errors.
    Check(check::Args),
    /// Copy files out of a damaged volume.
    Restore(restore::Args),
    /// Turn ext2, ext3 or ext4 into btrfs in place, or back.
    Convert(convert::Args),
    /// Repair specific damage, so that a volume can be opened again.
    #[command(subcommand)]
    Rescue(rescue::Verb),
    /// Find deleted files, and copy them to another place.
    Undelete(undelete::Args),
    /// Print the items of trees in the format of `btrfs inspect-internal dump-tree`.
    Dump(dump::Args),
    /// Create, snapshot, delete and show subvolumes.
    Subvolume(subvolume::Args),
    /// Send a read-only subvolume as a stream, for `receive` or `btrfs receive`.
    Send(send::Args),
    /// Receive subvolumes from streams of `send` or `btrfs send`.
    Receive(receive::Args),
    /// Read all copies of data and metadata, verify the checksums, and repair bad copies.
    #[command(subcommand)]
    Scrub(scrub::Verb),
    /// Move data between block groups, and optionally change their profile.
    #[command(subcommand)]
    Balance(balance::Verb),
    /// Count the space that subvolumes use.
    #[command(subcommand)]
    Quota(quota::Verb),
    /// Manage groups of subvolumes, with their usage and limits.
    #[command(subcommand)]
    Qgroup(qgroup::Verb),
    /// Add, remove and replace devices of a volume, and show their error counts.
    #[command(subcommand)]
    Device(device::Verb),
    /// Tell the devices of a volume which space is free.
    Fstrim(fstrim::Args),
    /// Show figures of running mounts and servers.
    Stats(stats::Args),
    /// Watch running mounts and servers on the whole screen.
    Top(top::Args),
    /// Serve figures of this user's mounts and servers to Prometheus.
    Metrics(metrics::Args),
    /// Manage write-back caches in the format of Linux's dm-writecache.
    Cache(cache::Args),
    /// Manage volumes in stores of objects: commits, pins, clones, garbage.
    #[command(subcommand)]
    Remote(remote::Verb),
    /// Create a volume, mount it, run a workload on it, and print the results.
    Demo(demo::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Write the manual pages to a directory.
    Manual(manual::Args),
}

impl Command {
    /// Returns whether the command goes on after it has printed its answer. Later events of such a
    /// command appear only in the log.
    pub(crate) fn speaks_by_log(&self) -> bool {
        matches!(self, Self::Mount(_) | Self::Nbd(_))
    }

    /// Runs the command. `line` returns the definition of the whole command line, from which the
    /// manual and the completions are made.
    pub(crate) fn run(self, ui: &Ui, line: fn() -> clap::Command) -> Result<Exit> {
        match self {
            Self::Mkfs(args) => mkfs::run(args, ui),
            Self::Mount(args) => mount::run(args, ui),
            Self::Umount(args) => umount::run(&args, ui),
            Self::Nbd(args) => nbd::run(args, ui),
            Self::Ls(args) => ls::run(args, ui),
            Self::Cat(args) => cat::run(args, ui),
            Self::Cp(args) => cp::run(args, ui),
            Self::Mkdir(args) => mkdir::run(args, ui),
            Self::Rm(args) => rm::run(args, ui),
            Self::Mv(args) => mv::run(args, ui),
            Self::Ln(args) => ln::run(args, ui),
            Self::Stat(args) => stat::run(args, ui),
            Self::Df(args) => df::run(args, ui),
            Self::Du(args) => du::run(&args, ui),
            Self::Compsize(args) => compsize::run(&args, ui),
            Self::Map(args) => map::run(&args, ui),
            Self::Tree(args) => tree::run(args, ui),
            Self::Filesystem(args) => filesystem::run(args, ui),
            Self::Info(args) => info::run(args, ui),
            Self::Check(args) => check::run(args, ui),
            Self::Restore(args) => restore::run(args, ui),
            Self::Convert(args) => convert::run(args, ui),
            Self::Rescue(verb) => rescue::run(verb, ui),
            Self::Undelete(args) => undelete::run(args, ui),
            Self::Dump(args) => dump::run(args, ui),
            Self::Subvolume(args) => subvolume::run(args, ui),
            Self::Property(args) => property::run(args, ui),
            Self::Fsverity(args) => buttress_control::fsverity::run(args, ui),
            Self::Quota(verb) => quota::run(verb, ui),
            Self::Qgroup(verb) => qgroup::run(verb, ui),
            Self::Send(args) => send::run(args, ui),
            Self::Receive(args) => receive::run(args, ui),
            Self::Scrub(verb) => scrub::run(verb, ui),
            Self::Balance(verb) => balance::run(verb, ui),
            Self::Device(verb) => device::run(verb, ui),
            Self::Fstrim(args) => fstrim::run(&args, ui),
            Self::Stats(args) => stats::run(args, ui),
            Self::Top(args) => top::run(&args, ui),
            Self::Metrics(args) => metrics::run(ui, &args),
            Self::Cache(args) => cache::run(args, ui),
            Self::Remote(verb) => remote::run(verb, ui),
            Self::Demo(args) => demo::run(args, ui),
            Self::Completions(args) => completions::run(&args, line()),
            Self::Manual(args) => manual::run(&args, line()),
        }
    }
}
