//! Options that btrfs-progs accept before and behind every verb, and options with a value that may
//! be missing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, ArgMatches, Command};

/// The names of the options behind a verb. They differ from all names of the verbs' own options.
const QUIET: &str = "quiet-behind";
const VERBOSE: &str = "verbose-behind";

/// Adds `-q` and `-v` to every verb, where the verb has no other meaning for the letter. `-h` is
/// help only where it is no unit.
pub(super) fn on_every_verb(command: Command) -> Command {
    let mut command = command;
    let names: Vec<_> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, on_every_verb);
    }
    let has_short = |command: &Command, letter| {
        command.get_arguments().any(|arg| arg.get_short() == Some(letter))
    };
    let has_long =
        |command: &Command, name| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    let help = Arg::new("help").long("help").action(ArgAction::Help).help("Print help");
    let help = if has_short(&command, 'h') { help } else { help.short('h') };
    command = command.disable_help_flag(true).arg(help);
    let also =
        [(QUIET, 'q', "quiet", ArgAction::SetTrue), (VERBOSE, 'v', "verbose", ArgAction::Count)];
    for (id, letter, name, action) in also {
        let mut arg = Arg::new(id).action(action).hide(true);
        let (short, long) = (!has_short(&command, letter), !has_long(&command, name));
        if short {
            arg = arg.short(letter);
        }
        if long {
            arg = arg.long(name);
        }
        if short || long {
            command = command.arg(arg);
        }
    }
    command
}

/// How often `-v` was given, and whether `-q` was, before or behind the verb.
pub(super) fn given(matches: &ArgMatches) -> (u8, bool) {
    let count = |matches: &ArgMatches, id| {
        matches.try_get_one::<u8>(id).ok().flatten().copied().unwrap_or(0)
    };
    let flag = |matches: &ArgMatches, id| {
        matches.try_get_one::<bool>(id).ok().flatten().copied().unwrap_or(false)
    };
    let (mut verbose, mut quiet) = (count(matches, "verbose"), flag(matches, "quiet"));
    let mut at = Some(matches);
    while let Some(matches) = at {
        verbose = verbose.saturating_add(count(matches, VERBOSE));
        quiet |= flag(matches, QUIET);
        at = matches.subcommand().map(|(_, below)| below);
    }
    (verbose, quiet)
}

/// The codecs that may follow `-c` without a space.
const CODECS: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];

/// Puts `=` between an option and its value, where btrfs-progs accept the value only without a
/// space: `-czstd`, `-dusage=5`. Without `=`, the parser would take the next word for the value.
pub(super) fn with_equals(words: &[OsString]) -> Vec<OsString> {
    let fit: fn(&OsString) -> OsString = if is_meant(words, ("filesystem", 1), ("defragment", 2)) {
        with_codec
    } else if is_meant(words, ("balance", 1), ("start", 4)) {
        with_filters
    } else {
        OsString::clone
    };
    let mut fitted: Vec<_> = words.iter().map(fit).collect();
    if let Some((at, word)) = implied(words) {
        fitted.insert(at, word.into());
    }
    fitted
}

/// As in btrfs-progs, a check that makes a tree anew is a repair. The option goes right behind the
/// verb: behind `--`, it would be the name of a file.
fn implied(words: &[OsString]) -> Option<(usize, &'static str)> {
    let options = words.split(|word| word == "--").next()?;
    let begins = |start: &[u8]| options.iter().any(|word| word.as_bytes().starts_with(start));
    let is_name = |word: &&OsString| !word.as_bytes().starts_with(b"-");
    let at = options.iter().skip(1).position(|word| is_name(&word))? + 1;
    let is_check = b"check".starts_with(options[at].as_bytes());
    (is_check && begins(b"--init-") && !begins(b"--repair")).then_some((at + 1, "--repair"))
}

fn with_codec(word: &OsString) -> OsString {
    let bytes = word.as_bytes();
    let is_short = bytes.first() == Some(&b'-') && bytes.get(1) != Some(&b'-');
    let codec_at = bytes.iter().position(|byte| *byte == b'c').map(|at| at + 1);
    match codec_at.map(|at| bytes.split_at(at)) {
        Some((flags, codec)) if is_short && CODECS.iter().any(|name| codec.starts_with(name)) => {
            OsString::from_vec([flags, b"=", codec].concat())
        }
        _ => word.clone(),
    }
}

/// Filters follow `-d`, `-m` or `-s`, behind flags such as the one of `-fs`.
fn with_filters(word: &OsString) -> OsString {
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| b"dms".contains(byte));
    match at.map(|at| bytes.split_at(at + 1)) {
        Some((flags, filters))
            if flags.first() == Some(&b'-')
                && flags.get(1) != Some(&b'-')
                && !filters.is_empty()
                && filters[0] != b'=' =>
        {
            OsString::from_vec([flags, b"=", filters].concat())
        }
        _ => word.clone(),
    }
}

/// Whether a command line has this group and this verb. Each may be shortened to the number of
/// letters beside it.
fn is_meant(words: &[OsString], group: (&str, usize), verb: (&str, usize)) -> bool {
    let mut names = words.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-"));
    let mut begins = |(whole, least): (&str, usize)| {
        let word = names.next().map_or(&[][..], |word: &OsString| OsStr::as_bytes(word));
        word.len() >= least && whole.as_bytes().starts_with(word)
    };
    begins(group) && begins(verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The option that is implied is an option also where `--` ends the options.
    #[test]
    fn a_tree_made_anew_is_a_repair() {
        for (line, wanted) in [
            ("btrfs check --init-csum-tree -- a", "btrfs check --repair --init-csum-tree -- a"),
            ("btrfs -q check a --init-csum-tree", "btrfs -q check --repair a --init-csum-tree"),
            ("btrfs check --repair --init-csum-tree a", "btrfs check --repair --init-csum-tree a"),
            ("btrfs check -- --init-csum-tree", "btrfs check -- --init-csum-tree"),
            ("btrfs check --init-csum-tree -- --repair", {
                "btrfs check --repair --init-csum-tree -- --repair"
            }),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(with_equals(&words).join(" ".as_ref()), wanted);
        }
    }
}
