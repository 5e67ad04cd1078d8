//! The places of a command line: the volumes, subvolumes and files that its verb works on.
//!
//! # Invariants
//!
//! - **P1** Every verb is in one of the lists below, which say which of its arguments are places. A
//!   verb, a number, a name of a property and the value of an option are no places.
//! - **P2** If the parser does not know a line, the last word that is a place decides. So options
//!   of newer releases of btrfs-progs reach btrfs-progs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{ArgMatches, Command};

use crate::linux::{self, Owner, Takes};

/// Verbs with places alone.
const ALL: &str = "subvolume create,subvolume snapshot,subvolume delete,subvolume list,\
    subvolume show,subvolume get-default,filesystem df,filesystem du,filesystem usage,\
    filesystem show,filesystem sync,filesystem defragment,filesystem mkswapfile,balance,\
    balance start,balance pause,balance cancel,balance resume,balance status,device scan,\
    device ready,device stats,device usage,device replace status,device replace cancel,\
    scrub start,scrub resume,scrub status,scrub cancel,check,inspect-internal dump-tree,\
    inspect-internal dump-super,inspect-internal map-swapfile,inspect-internal min-dev-size,\
    inspect-internal rootid,inspect-internal tree-stats,quota enable,quota disable,quota rescan,\
    quota status,qgroup show,qgroup clear-stale,send,receive,replace status,replace cancel,\
    rescue super-recover,rescue zero-log,rescue fix-device-size,rescue chunk-recover,\
    rescue clear-uuid-tree";
/// Verbs with the place as their first argument.
const FIRST: &str = "subvolume find-new,subvolume sync,filesystem label,property get,property set,\
    property list,restore";
/// Verbs with the place as their last argument.
const LAST: &str = "subvolume set-default,filesystem resize,device add,device remove,\
    device replace start,inspect-internal inode-resolve,inspect-internal logical-resolve,\
    inspect-internal subvolid-resolve,qgroup create,qgroup destroy,qgroup assign,qgroup remove,\
    qgroup limit,replace start";
/// Verbs without places.
const NONE: &str = "rescue create-control-device,version";
/// Verbs that take devices and images alone. They also take those without a valid superblock.
const DEVICES: [&str; 7] = [
    "check",
    "restore",
    "rescue ",
    "device scan",
    "device ready",
    "inspect-internal dump-",
    "inspect-internal tree-stats",
];

/// Verbs that take files. So do those about properties, but for a label.
const FILES: &str = "filesystem du,filesystem defragment,inspect-internal rootid,\
    inspect-internal map-swapfile";

/// Whether btrfs-progs must serve a command line. `line` is what the parser `command` made of it.
#[must_use]
pub fn are_of_linux(
    command: &Command,
    words: &[OsString],
    line: Result<&ArgMatches, &clap::Error>,
) -> bool {
    let Ok(matches) = line else {
        // A request for help has no places.
        let is_help = line.is_err_and(|error| !error.use_stderr());
        return !is_help && guess(command, words) == Owner::Linux;
    };
    let (verb, places) = named(command, matches);
    if verb == "device scan" {
        return scans_for_linux(matches, &places);
    }
    let is_block = places.iter().any(is_block);
    if verb == "device ready" && is_block && linux::can_be_asked() {
        return true;
    }
    let takes = takes(&verb, matches);
    // A volume may be shown by its label or its identifier.
    let is_path = |place: &OsStr| {
        verb != "filesystem show" || place.as_bytes().contains(&b'/') || Path::new(place).exists()
    };
    places.iter().any(|place| is_path(place) && linux::owner(place, takes) == Owner::Linux)
}

fn takes(verb: &str, matches: &ArgMatches) -> Takes {
    if DEVICES.iter().any(|start| verb.starts_with(start)) {
        return Takes::Devices;
    }
    let is_file = match verb.starts_with("property ") {
        true => !is_about_label(matches),
        false => FILES.split(',').any(|one| one == verb),
    };
    if is_file { Takes::Files } else { Takes::Volumes }
}

/// Whether a line about properties is about a label, or about volumes and devices.
fn is_about_label(matches: &ArgMatches) -> bool {
    let mut matches = matches;
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    let first = |id: &str| matches.try_get_raw(id).ok().flatten().and_then(|mut all| all.next());
    let is_volume = |kind: &OsStr| matches!(kind.as_bytes().first(), Some(b'f' | b'd'));
    first("name").is_some_and(|name| name == "label") || first("kind").is_some_and(is_volume)
}

fn is_block(device: &OsString) -> bool {
    use std::os::unix::fs::FileTypeExt;
    Path::new(device).metadata().is_ok_and(|found| found.file_type().is_block_device())
}

/// The names of all verbs that are in a list.
pub fn listed() -> impl Iterator<Item = &'static str> {
    [ALL, FIRST, LAST, NONE].into_iter().flat_map(|list| list.split(','))
}

/// The verb of a line, and its places.
#[must_use]
pub fn named(command: &Command, matches: &ArgMatches) -> (String, Vec<OsString>) {
    let (mut command, mut matches) = (command, matches);
    let mut names: Vec<&str> = Vec::new();
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, below);
        names.push(name);
    }
    let verb = names.join(" ");
    let mut words = arguments(command, matches);
    let is_in = |list: &str| list.split(',').any(|one| one == verb);
    let count = words.len();
    match () {
        () if is_in(ALL) => {}
        () if is_in(FIRST) => words.truncate(1),
        () if is_in(LAST) => drop(words.drain(..count.saturating_sub(1))),
        () => words.clear(),
    }
    (verb, words)
}

/// The arguments of a verb that are no options, in their order.
fn arguments(command: &Command, matches: &ArgMatches) -> Vec<OsString> {
    let mut found: Vec<(usize, OsString)> = Vec::new();
    for arg in command.get_positionals() {
        let id = arg.get_id().as_str();
        let Ok(Some(values)) = matches.try_get_raw(id) else { continue };
        let at = matches.indices_of(id).into_iter().flatten();
        found.extend(at.zip(values.map(OsStr::to_owned)));
    }
    found.sort();
    found.into_iter().map(|(_, word)| word).collect()
}

/// Only Linux keeps a list of devices. It registers block devices, all of them if none is named,
/// and says which names lead to none. A list of images alone is for this program.
fn scans_for_linux(matches: &ArgMatches, devices: &[OsString]) -> bool {
    let is_theirs = |device: &OsString| is_block(device) || !Path::new(device).exists();
    let is_any = devices.is_empty() || devices.iter().any(is_theirs);
    matches.subcommand().is_some() && is_any && linux::can_be_asked()
}

/// The owner of the last place of a line that the parser does not know.
fn guess(command: &Command, words: &[OsString]) -> Owner {
    let mut words = words.iter().skip(1).peekable();
    let is_option = |word: &OsString| word.as_bytes().starts_with(b"-");
    while let Some(word) = words.next_if(|word| is_option(word)) {
        if word == "--format" || word == "--log" {
            words.next();
        }
    }
    // The group, then the verb if the group has verbs.
    let begins = |verb: &Command, word: &OsString| {
        let names = std::iter::once(verb.get_name()).chain(verb.get_all_aliases());
        names.into_iter().any(|name| name.as_bytes().starts_with(word.as_bytes()))
    };
    let Some(group) = words.next() else { return Owner::Neither };
    let group = command.get_subcommands().find(|command| begins(command, group));
    if let Some(group) = group
        && group.has_subcommands()
    {
        let is_whole = group.get_positionals().next().is_some();
        words.next_if(|word| {
            !is_option(word) && (!is_whole || group.get_subcommands().any(|one| begins(one, word)))
        });
    }
    let mut are_options = true;
    let places = words.filter(|word| {
        let is_place = !are_options || !is_option(word);
        are_options &= *word != "--";
        is_place
    });
    let owners = places.map(|word| linux::owner(word, Takes::Volumes));
    owners.filter(|owner| *owner != Owner::Neither).last().unwrap_or(Owner::Neither)
}
