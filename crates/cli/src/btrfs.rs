//! The program under the name `btrfs`: the command line of btrfs-progs, for mounts and images of
//! this project.
//!
//! # Place
//!
//! Scripts and backup programs call `btrfs`. A link to this program with that name accepts the same
//! commands and prints the same output. A command that `buttress` has in the same form uses the
//! code of `buttress`. The other commands are in the modules below. Each module parses the
//! arguments of its command, runs an operation, and prints the output that scripts expect.
//!
//! # Invariants
//!
//! - **B1** If a command line has a place on a mount of the kernel's btrfs, btrfs-progs must serve
//!   it. This program passes the whole line on unchanged ([`places`]).
//! - **B2** As with btrfs-progs, the exit status is 0 or 1, or 2 if there is nothing to cancel.
//!   Errors begin with `ERROR: `.

mod balance;
mod check;
mod defragment;
mod device;
mod du;
mod dump;
mod filesystem;
mod inspect;
mod options;
mod property;
mod receive;
mod replace;
mod rescue;
mod restore;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress_words::{linux, places, scrub, subvolume};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use crate::commands::{qgroup, quota, send};
use crate::exit::{Exit, Failure, Result};
use crate::log;
use crate::ui::Ui;

/// The release of btrfs-progs that this command line follows.
const SPOKEN: &str = "6.2";

/// Manages btrfs volumes with the commands of btrfs-progs.
#[derive(Debug, Parser)]
#[command(name = "btrfs", max_term_width = 100, arg_required_else_help = true)]
#[command(infer_subcommands = true, infer_long_args = true, disable_version_flag = true)]
struct Line {
    /// Print more messages.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print only errors.
    #[arg(short, long)]
    quiet: bool,
    /// How much to print.
    #[arg(long, value_name = "LEVEL",
        value_parser = ["default", "info", "verbose", "debug", "quiet"])]
    log: Option<String>,
    /// Output format. `filesystem df`, `device stats` and `qgroup show` print JSON.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    format: String,
    /// Print the version.
    #[arg(long)]
    version: bool,
    #[command(subcommand)]
    group: Option<Group>,
}

#[derive(Debug, clap::Subcommand)]
enum Group {
    /// Create, snapshot, delete and show subvolumes.
    #[command(subcommand)]
    Subvolume(subvolume::Verb),
    /// Show the use of space, and manage a whole volume.
    #[command(subcommand)]
    Filesystem(filesystem::Verb),
    /// Balance data among devices, or change the profile of block groups.
    Balance(balance::Args),
    /// Add, remove and show the devices of a volume.
    #[command(subcommand)]
    Device(device::Verb),
    /// Read all data and metadata, verify the checksums, and repair bad copies.
    #[command(subcommand)]
    Scrub(scrub::Verb),
    /// Check an unmounted volume for errors.
    Check(check::Args),
    /// Show internal structures: trees, superblocks, inode and subvolume numbers.
    #[command(subcommand)]
    InspectInternal(inspect::Verb),
    /// Show and set properties of subvolumes, files and directories.
    #[command(subcommand)]
    Property(property::Verb),
    /// Count the space that subvolumes use.
    #[command(subcommand)]
    Quota(quota::Verb),
    /// Manage groups of subvolumes, with their usage and limits.
    #[command(subcommand)]
    Qgroup(qgroup::Verb),
    /// Send a read-only subvolume as a stream.
    Send(send::Args),
    /// Receive subvolumes from a stream.
    Receive(receive::Args),
    /// Replace a device by another.
    #[command(subcommand)]
    Replace(replace::Verb),
    /// Copy files out of a damaged volume.
    Restore(restore::Args),
    /// Repair specific damage of an unmounted volume.
    #[command(subcommand)]
    Rescue(rescue::Verb),
    /// Print the version.
    Version,
}

/// If the program is called `btrfs`, runs the command line and returns the exit status.
pub(crate) fn run(words: &[OsString]) -> Option<u8> {
    if Path::new(words.first()?).file_name()? != "btrfs" {
        return None;
    }
    let matches = Line::matches(words);
    if places::are_of_linux(&Line::command(), words, matches.as_ref()) {
        return Some(linux::hand_over(&words[1..]));
    }
    let line = match matches.and_then(|matches| Line::of(&matches)) {
        Ok(line) => line,
        Err(error) => {
            let is_help = error.exit_code() == 0;
            // Standard output may be closed.
            let _ = error.print();
            return Some(u8::from(!is_help));
        }
    };
    let is_json = line.format == "json";
    let is_quiet = line.quiet || line.log.as_deref() == Some("quiet");
    let ui = Ui::new(is_json).quiet(is_quiet).silent(is_quiet && line.may_be_silent());
    // Of all commands, only a scrub has an exit code for damage.
    let is_scrub = matches!(line.group, Some(Group::Scrub(_)));
    match log::start(false, is_json).and_then(|()| line.carry_out(&ui)) {
        Ok(Exit::Usage) => Some(2),
        Ok(Exit::Corrupt) if is_scrub => Some(3),
        Ok(exit) => Some(u8::from(exit != Exit::Success)),
        Err(failure) if failure.is_closed_pipe() => Some(0),
        Err(failure) => {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "ERROR: {failure}");
            Some(1)
        }
    }
}

impl Line {
    fn matches(words: &[OsString]) -> Result<ArgMatches, clap::Error> {
        options::on_every_verb(Self::command()).try_get_matches_from(options::with_equals(words))
    }

    fn of(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut line = Self::from_arg_matches(matches)?;
        let (verbose, quiet) = options::given(matches);
        line.verbose = verbose;
        line.quiet = quiet;
        Ok(line)
    }

    /// Whether the command prints no answer with `-q`. As in btrfs-progs, three commands do.
    fn may_be_silent(&self) -> bool {
        let is_status = matches!(&self.group, Some(Group::Balance(args)) if args.is_status());
        let is_show = matches!(self.group, Some(Group::Qgroup(qgroup::Verb::Show(_))));
        !is_status && !is_show && !matches!(self.group, Some(Group::Replace(_)))
    }

    /// Whether the command has an answer in the JSON of btrfs-progs.
    fn has_json(&self) -> bool {
        matches!(
            self.group,
            Some(
                Group::Filesystem(filesystem::Verb::Df { .. })
                    | Group::Device(device::Verb::Stats { .. })
                    | Group::Qgroup(qgroup::Verb::Show(_))
            )
        )
    }

    fn carry_out(self, ui: &Ui) -> Result<Exit> {
        if ui.json() && !self.has_json() {
            let what = "output format json is unsupported for this command";
            return Err(Failure::new(Exit::Failure, what));
        }
        let is_verbose =
            self.verbose > 0 || matches!(self.log.as_deref(), Some("info" | "verbose" | "debug"));
        let group = match self.group {
            Some(group) if !self.version => group,
            _ => Group::Version,
        };
        match group {
            Group::Subvolume(verb) => subvolume::run(verb, ui),
            Group::Filesystem(verb) => filesystem::run(verb, is_verbose, ui),
            Group::Balance(args) => balance::run(args, is_verbose, ui),
            Group::Device(verb) => device::run(verb, ui),
            Group::Scrub(verb) => scrub::run(verb, ui),
            Group::Check(args) => check::run(args, ui),
            Group::InspectInternal(verb) => inspect::run(verb, ui),
            Group::Property(verb) => property::run(verb, ui),
            Group::Quota(verb) => quota::run(verb, ui),
            Group::Qgroup(mut verb) => {
                if let qgroup::Verb::Show(show) = &mut verb {
                    show.of_btrfs = true;
                }
                qgroup::run(verb, ui)
            }
            Group::Send(args) => send::run(args, ui),
            Group::Receive(args) => receive::run(args, ui),
            Group::Replace(verb) => replace::run(verb, ui),
            Group::Restore(args) => restore::run(args, is_verbose, ui),
            Group::Rescue(verb) => rescue::run(verb, ui),
            Group::Version => {
                let own = env!("CARGO_PKG_VERSION");
                ui.line(format!("btrfs-progs v{SPOKEN} (buttress {own})"))?;
                Ok(Exit::Success)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// Command lines, at least one for each verb.
    const LINES: &str = include_str!("btrfs/lines.txt");

    /// Every verb has a command line here, and each of the lines is parsed. A verb with an option
    /// that clashes with a global option would panic.
    #[test]
    fn a_line_of_every_verb_is_parsed() {
        options::on_every_verb(Line::command()).debug_assert();
        let mut verbs = verbs();
        for line in LINES.lines().filter(|line| !line.is_empty()) {
            let words: Vec<OsString> =
                std::iter::once("btrfs").chain(line.split(' ')).map(OsString::from).collect();
            if let Err(error) = Line::matches(&words).and_then(|matches| Line::of(&matches)) {
                panic!("{line}: {error}");
            }
            verbs.retain(|verb| line != verb && !line.starts_with(&format!("{verb} ")));
        }
        assert!(verbs.is_empty(), "no line for {verbs:?}");
    }

    /// The names of all verbs, with their groups.
    fn verbs() -> Vec<String> {
        fn add(command: &Command, above: &str, verbs: &mut Vec<String>) {
            let name = format!("{above}{}", command.get_name());
            if !command.has_subcommands() || command.get_positionals().next().is_some() {
                verbs.push(name.clone());
            }
            command.get_subcommands().for_each(|verb| add(verb, &format!("{name} "), verbs));
        }
        let mut verbs = Vec::new();
        Line::command().get_subcommands().for_each(|group| add(group, "", &mut verbs));
        verbs
    }

    /// A new verb must say which of its arguments are places.
    #[test]
    fn every_verb_is_in_one_list() {
        let (mut listed, mut verbs): (Vec<_>, _) = (places::listed().collect(), verbs());
        listed.sort_unstable();
        verbs.sort_unstable();
        assert_eq!(verbs, listed);
    }

    #[test]
    fn places_are_neither_verbs_nor_values() {
        for (line, wanted) in [
            ("balance start -dusage=5 a", "a"),
            ("balance a", "a"),
            ("subvolume snapshot -r a b", "a b"),
            ("subvolume create -i 1/1 a b", "a b"),
            ("subvolume set-default 5 a", "a"),
            ("subvolume set-default a", "a"),
            ("subvolume sync -s 1 a 256", "a"),
            ("filesystem label a b", "a"),
            ("filesystem resize -1g a", "a"),
            ("device add -f a b", "b"),
            ("device delete a b", "b"),
            ("device replace start a b c", "c"),
            ("property set a ro false", "a"),
            ("qgroup limit 1G 0/5 a", "a"),
            ("qgroup assign 0/5 1/1 a", "a"),
            ("send -f b -p c -c d a", "a"),
            ("receive -f b a", "a"),
            ("restore -v a b", "a"),
            ("-q --format json filesystem df a", "a"),
            ("ins inode 257 a", "a"),
            ("check -- a", "a"),
            ("version", ""),
        ] {
            let words: Vec<OsString> =
                std::iter::once("btrfs").chain(line.split(' ')).map(OsString::from).collect();
            let matches = Line::matches(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(
                places::named(&Line::command(), &matches).1.join(" ".as_ref()),
                wanted,
                "{line}"
            );
        }
    }
}
