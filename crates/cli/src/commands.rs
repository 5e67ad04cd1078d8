//! The verbs. Each verb has its own file, with its arguments and its work.

pub(crate) mod balance;
mod cache;
mod cat;
pub(crate) mod check;
mod completions;
mod compsize;
mod cp;
mod demo;
pub(crate) mod device;
mod df;
pub(crate) mod du;
pub(crate) mod dump;
pub(crate) mod filesystem;
mod fstrim;
pub(crate) mod info;
mod ln;
mod ls;
mod manual;
mod map;
mod metrics;
mod mkdir;
mod mkfs;
pub(crate) mod mount;
mod mv;
mod nbd;
pub(crate) mod property;
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

use clap::Subcommand;

use crate::exit::{Exit, Result};
use crate::ui::Ui;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a volume on an image file or a block device.
    Mkfs(mkfs::Args),
    /// Mount a volume through FUSE.
    Mount(mount::Args),
    /// Take a mount away, and wait until all that was written to it is durable.
    Umount(umount::Args),
    /// Serve an image or block device to NBD clients.
    Nbd(nbd::Args),
    /// List a directory of a volume.
    Ls(ls::Args),
    /// Print files of a volume.
    Cat(cat::Args),
    /// Copy files into a volume, out of it, or within it.
    Cp(cp::Args),
    /// Make directories in a volume.
    Mkdir(mkdir::Args),
    /// Remove files and directories from a volume.
    Rm(rm::Args),
    /// Rename within a volume.
    Mv(mv::Args),
    /// Make hard or symbolic links in a volume.
    Ln(ln::Args),
    /// Show everything about one file of a volume.
    Stat(stat::Args),
    /// Show how full a volume is.
    Df(df::Args),
    /// Show what files and folders take on the devices, alone and shared with others.
    Du(du::Args),
    /// Show how well files are compressed.
    Compsize(compsize::Args),
    /// Draw where everything of a volume lies.
    Map(map::Args),
    /// Draw a directory of a volume as a tree.
    Tree(tree::Args),
    /// Work on the files of a volume as they lie on disk.
    Filesystem(filesystem::Args),
    /// Show and set properties of files and directories.
    Property(property::Args),
    /// Show superblock, features, devices, space and trees of a volume.
    Info(info::Args),
    /// Look at a whole volume and say what is wrong with it.
    Check(check::Args),
    /// Get files out of a damaged volume.
    Restore(restore::Args),
    /// Mend what keeps a volume from being opened.
    #[command(subcommand)]
    Rescue(rescue::Verb),
    /// Find deleted files, and bring them back to another place.
    Undelete(undelete::Args),
    /// Print the items of the trees, in the words of `btrfs inspect-internal dump-tree`.
    Dump(dump::Args),
    /// Make, copy, delete and show subvolumes.
    Subvolume(subvolume::Args),
    /// Write a read-only subvolume as a stream, for `receive` or `btrfs receive`.
    Send(send::Args),
    /// Make subvolumes from the streams of `send` or `btrfs send`.
    Receive(receive::Args),
    /// Read everything of a volume, every copy, and mend what is wrong.
    #[command(subcommand)]
    Scrub(scrub::Verb),
    /// Move what is in block groups to others, perhaps with another profile.
    #[command(subcommand)]
    Balance(balance::Verb),
    /// Add and remove devices of a volume, and show how often they failed.
    #[command(subcommand)]
    Device(device::Verb),
    /// Tell the devices of a volume of everything that is free on it.
    Fstrim(fstrim::Args),
    /// Show what running mounts and servers hold and do.
    Stats(stats::Args),
    /// Watch running mounts and servers on the whole screen.
    Top(top::Args),
    /// Answer Prometheus with the figures of what this user has mounted or serves.
    Metrics(metrics::Args),
    /// Make, look into, verify and drain write-back caches, those of Linux's dm-writecache too.
    Cache(cache::Args),
    /// Commits, pins, clones and garbage of a volume in a store of objects.
    #[command(subcommand)]
    Remote(remote::Verb),
    /// Make a volume, mount it, put it to work, and show what happens.
    Demo(demo::Args),
    /// Print what a shell needs to complete command lines of this program.
    Completions(completions::Args),
    /// Write the manual pages to a directory.
    Manual(manual::Args),
}

impl Command {
    /// Returns whether the command continues after its answer, so that only a log can report later
    /// events.
    pub(crate) fn speaks_by_log(&self) -> bool {
        matches!(self, Self::Mount(_) | Self::Nbd(_))
    }

    /// Runs the command. `line` defines the whole command line, which manual and completions
    /// describe.
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
            Self::Rescue(verb) => rescue::run(verb, ui),
            Self::Undelete(args) => undelete::run(args, ui),
            Self::Dump(args) => dump::run(args, ui),
            Self::Subvolume(args) => subvolume::run(args, ui),
            Self::Property(args) => property::run(args, ui),
            Self::Send(args) => send::run(args, ui),
            Self::Receive(args) => receive::run(args, ui),
            Self::Scrub(verb) => scrub::run(verb, ui),
            Self::Balance(verb) => balance::run(verb, ui),
            Self::Device(verb) => device::run(verb, ui),
            Self::Fstrim(args) => fstrim::run(&args, ui),
            Self::Stats(args) => stats::run(args, ui),
            Self::Top(args) => top::run(&args, ui),
            Self::Metrics(args) => metrics::run(&args),
            Self::Cache(args) => cache::run(args, ui),
            Self::Remote(verb) => remote::run(verb, ui),
            Self::Demo(args) => demo::run(args, ui),
            Self::Completions(args) => completions::run(&args, line()),
            Self::Manual(args) => manual::run(&args, line()),
        }
    }
}
