//! The program as a helper of mount(8) and umount(8). The name that a caller uses for the program
//! selects the helper.
//!
//! # Place
//!
//! `mount -t buttress` runs `/sbin/mount.buttress`. `umount` of a Buttress mount runs
//! `/sbin/umount.fuse.buttress`. Both are links to this program. `docs/internals/mount.md` lists
//! the links and describes how to make them.
//!
//! # Invariants
//!
//! - **H1** The calling convention is that of mount(8): `source target [-sfnv] [-N namespace] [-o
//!   options] [-t type]`, and `target [-flnrv] [-N namespace] [-t type]`. The exit codes are those
//!   of mount(8), too.
//! - **H2** The mount helper ends when the mount is there. The umount helper ends when the volume
//!   is closed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use crate::commands::{mount, umount};
use crate::exit::{Exit, Failure};
use crate::{log, ui};

/// The exit codes of mount(8) and umount(8) that this program uses. mount(8) also has 8 for an
/// interrupt and 16 for problems with `/etc/mtab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Code {
    Done = 0,
    /// The command line is wrong, or the user lacks a permission.
    Usage = 1,
    /// The system cannot start a process.
    System = 2,
    /// A panic, which is a bug.
    Bug = 4,
    Failed = 32,
    /// Some of several targets succeeded.
    Some = 64,
}

/// The helper that the program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    Mount,
    Umount,
}

/// The parts of a helper's name after `mount.` or `umount.`: the values of `-t`, and the types in
/// the kernel's list of mounts.
const TYPES: [&str; 3] = ["buttress", "fuse.buttress", "fuseblk.buttress"];

/// If the program was called by the name of a helper, does the helper's work and returns the exit
/// code.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    let name = words.next()?;
    let called = called(&name)?;
    let name = Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let work = || match Line::parse(called, words) {
        Ok(line) => line.carry_out(called).unwrap_or_else(|(code, failure)| {
            ui::note(failure.to_string());
            code
        }),
        Err(what) => {
            ui::note(format!("{name}: {what}"));
            Code::Usage
        }
    };
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(Code::Bug);
    Some(code as u8)
}

fn called(name: &OsStr) -> Option<Called> {
    let name = Path::new(name).file_name()?.to_str()?;
    let is_of = |rest: &str| TYPES.contains(&rest);
    if name.strip_prefix("mount.").is_some_and(is_of) {
        return Some(Called::Mount);
    }
    name.strip_prefix("umount.").is_some_and(is_of).then_some(Called::Umount)
}

/// A command line of mount(8) or umount(8) (H1).
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    places: Vec<OsString>,
    options: Vec<String>,
    /// The letters of options without a value.
    letters: Vec<char>,
}

impl Line {
    fn parse(called: Called, words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let alone = match called {
            Called::Mount => "sfnv",
            Called::Umount => "flnrv",
        };
        let mut line = Self::default();
        let mut words = words;
        let mut are_options_over = false;
        while let Some(word) = words.next() {
            let text = word.to_str().filter(|text| text.len() > 1 && !are_options_over);
            let Some(cluster) = text.and_then(|text| text.strip_prefix('-')) else {
                line.places.push(word);
                continue;
            };
            if cluster == "-" {
                are_options_over = true;
                continue;
            }
            let mut rest = cluster.chars();
            while let Some(letter) = rest.next() {
                if alone.contains(letter) {
                    line.letters.push(letter);
                    continue;
                }
                if !"oNt".contains(letter) || letter == 'o' && called == Called::Umount {
                    return Err(format!("there is no option -{letter}"));
                }
                let joined = rest.as_str();
                let value = match joined {
                    "" => words.next().ok_or(format!("-{letter} needs a value"))?,
                    joined => OsString::from(joined),
                };
                if letter == 'o' {
                    let value = value.into_string();
                    line.options.push(value.map_err(|_| "-o needs text".to_owned())?);
                }
                // `-t` and `-N` have no effect: the name of the helper has the type, and mount(8)
                // has entered the namespace.
                break;
            }
        }
        let is_whole = match called {
            Called::Mount => line.places.len() == 2,
            Called::Umount => !line.places.is_empty(),
        };
        if is_whole { Ok(line) } else { Err("needs a source and a target".to_owned()) }
    }

    fn has(&self, letter: char) -> bool {
        self.letters.contains(&letter)
    }

    fn carry_out(self, called: Called) -> Result<Code, (Code, Failure)> {
        log::start(false, false).map_err(failed)?;
        match called {
            Called::Mount => self.mount(),
            Called::Umount => self.umount(),
        }
    }

    fn mount(self) -> Result<Code, (Code, Failure)> {
        let words: Vec<&str> = mount::words(&self.options).collect();
        let is_remount = words.contains(&"remount");
        if self.has('f') {
            return Ok(Code::Done);
        }
        if is_remount {
            let target = Path::new(&self.places[1]);
            let (read_only, flags) = kernel_flags(&words);
            umount::remount(target, read_only, flags).map_err(failed)?;
            return Ok(Code::Done);
        }
        let mut given: Vec<OsString> = vec!["mount".into(), "--is-there-fine".into()];
        if self.has('s') {
            given.push("--sloppy".into());
        }
        if !self.options.is_empty() {
            given.extend(["-o".into(), self.options.join(",").into()]);
        }
        given.push("--".into());
        given.extend(self.places.iter().cloned());
        let is_kept = mount::is_for_initrd(&self.options);
        let child = mount::spawn(&given, is_kept).map_err(|failure| (Code::System, failure))?;
        match mount::start(child).map_err(failed)? {
            mount::Started::Serves(_) => {}
            mount::Started::Failed(Exit::Usage) => return Ok(Code::Usage),
            mount::Started::Failed(_) => return Ok(Code::Failed),
        }
        if self.has('v') {
            let [source, target] = [0, 1].map(|place| Path::new(&self.places[place]).display());
            println!("{source} mounted on {target}.");
        }
        Ok(Code::Done)
    }

    fn umount(self) -> Result<Code, (Code, Failure)> {
        let how =
            umount::How { lazy: self.has('l'), force: self.has('f'), read_only: self.has('r') };
        let mut failures = 0;
        for place in self.places.iter().map(PathBuf::from) {
            match umount::unmount(&place, how, &ui::Ui::new(false)) {
                Ok(()) if self.has('v') => println!("{} unmounted", place.display()),
                Ok(()) => {}
                Err(failure) => {
                    ui::note(failure.to_string());
                    failures += 1;
                }
            }
        }
        Ok(match failures {
            0 => Code::Done,
            all if all == self.places.len() => Code::Failed,
            _ => Code::Some,
        })
    }
}

fn failed(failure: Failure) -> (Code, Failure) {
    let code = if failure.exit == Exit::Usage { Code::Usage } else { Code::Failed };
    (code, failure)
}

/// Returns the changes that a remount makes in the kernel: whether the mount becomes read-only, and
/// the flags that only the kernel handles. If an option is repeated, the last occurrence counts.
fn kernel_flags(words: &[&str]) -> (bool, MountFlags) {
    const FLAGS: [(&str, &str, MountFlags); 8] = [
        ("nosuid", "suid", MountFlags::NOSUID),
        ("nodev", "dev", MountFlags::NODEV),
        ("noexec", "exec", MountFlags::NOEXEC),
        ("sync", "async", MountFlags::SYNCHRONOUS),
        ("dirsync", "nodirsync", MountFlags::DIRSYNC),
        ("noatime", "atime", MountFlags::NOATIME),
        ("nodiratime", "diratime", MountFlags::NODIRATIME),
        ("relatime", "norelatime", MountFlags::RELATIME),
    ];
    let mut flags = MountFlags::empty();
    let mut read_only = false;
    for word in words {
        match *word {
            "ro" => read_only = true,
            "rw" => read_only = false,
            word => {
                for (set, clear, flag) in FLAGS {
                    if word == set {
                        flags.insert(flag);
                    } else if word == clear {
                        flags.remove(flag);
                    }
                }
            }
        }
    }
    (read_only, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(called: Called, words: &[&str]) -> Result<Line, String> {
        Line::parse(called, words.iter().map(OsString::from))
    }

    /// The name of the link chooses the helper, wherever the link lies. Other names mean the
    /// program itself.
    #[test]
    fn names_tell_the_helper() {
        let of = |name: &str| called(OsStr::new(name));
        for kind in TYPES {
            assert_eq!(of(&format!("/sbin/mount.{kind}")), Some(Called::Mount));
            assert_eq!(of(&format!("umount.{kind}")), Some(Called::Umount));
        }
        for name in ["buttress", "@buttress", "mount", "mount.fuse", "umount.btrfs", ""] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    /// H1: letters may be joined, a value may follow its letter directly, and places may be
    /// anywhere.
    #[test]
    fn command_lines_are_those_of_mount() {
        let read = line(Called::Mount, &["a", "b", "-nsv", "-oro,x", "-t", "fuse.buttress"]);
        let read = read.expect("it is right");
        assert_eq!(read.places, ["a", "b"]);
        assert_eq!((read.options, read.letters), (vec!["ro,x".to_owned()], vec!['n', 's', 'v']));
        let read = line(Called::Mount, &["-o", "rw", "-N", "7", "--", "-a", "b", "-o"]);
        assert_eq!(read.map(|_| ()), Err("needs a source and a target".to_owned()));
        let read = line(Called::Umount, &["a", "-fl", "-t", "fuse.buttress", "b"]).expect("right");
        assert_eq!((read.places.len(), read.letters), (2, vec!['f', 'l']));
        for wrong in [&["a", "b", "-x"][..], &["a"], &["a", "b", "-o"], &[]] {
            assert!(line(Called::Mount, wrong).is_err(), "{wrong:?}");
        }
        assert!(line(Called::Umount, &["a", "-o", "x"]).is_err());
    }

    /// If several options set a flag, the last option counts.
    #[test]
    fn remounts_tell_the_kernel_its_flags() {
        let (read_only, flags) = kernel_flags(&["ro", "nosuid", "noatime", "rw", "atime", "x"]);
        assert_eq!((read_only, flags), (false, MountFlags::NOSUID));
        assert!(kernel_flags(&["remount", "ro"]).0);
    }
}
