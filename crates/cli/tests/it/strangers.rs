//! Other users of the machine beside a server of root: they neither ask the server nor join it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::checker::check;
use crate::unmounting::{can_mount, succeeded};
use crate::{Bench, bench, text};

/// The number of a user without rights, as Debian has it.
const STRANGER: u32 = 65534;

/// Connects to a socket and shows how that went.
const CONNECT: &str = "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); \
                       print connect($s, sockaddr_un($ARGV[0])) ? \"connected\" : \"refused: $!\"";

/// A folder that every user may use. Every user may write the volume in it, and run the copy of the
/// program.
struct Place(Bench);

impl Place {
    fn new() -> Self {
        let bench = bench();
        let open = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        };
        open(bench.folder(), 0o777);
        fs::copy(env!("CARGO_BIN_EXE_buttress"), bench.path("program")).expect("a copy");
        open(&bench.path("program"), 0o755);
        bench.volume("image", "128M");
        open(&bench.path("image"), 0o666);
        for name in ["a", "b"] {
            fs::create_dir(bench.path(name)).expect("a folder");
            open(&bench.path(name), 0o777);
        }
        Self(bench)
    }

    /// Runs the program as the stranger, with a folder of sockets.
    fn stranger(&self, sockets: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(self.0.path("program"));
        command.args(args).current_dir(self.0.folder()).env("BUTTRESS_RUNTIME_DIR", sockets);
        command.uid(STRANGER).gid(STRANGER).output().expect("it starts")
    }

    /// Says how it goes if a user connects to a socket.
    fn connected(user: u32, socket: &Path) -> String {
        let output = Command::new("perl").args(["-e", CONNECT, text(socket)]).uid(user).output();
        succeeded(&output.expect("perl starts"))
    }

    fn socket(&self) -> PathBuf {
        let run = fs::read_dir(self.0.path("run")).expect("the folder of sockets");
        let mut names = run.map(|entry| entry.expect("an entry").path());
        names.find(|name| name.extension().is_some_and(|end| end == "sock")).expect("a socket")
    }

    fn is_mounted(&self, name: &str) -> bool {
        let list = fs::read_to_string("/proc/self/mountinfo").expect("the list");
        let point = self.0.path(name);
        list.lines().any(|line| line.split(' ').nth(4) == Some(text(&point)))
    }
}

#[track_caller]
fn refused(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(words), "{}: {said}", output.status);
}

/// Another user can neither find nor open the sockets of root's server, whatever folder the user
/// names, and mounts nothing beside it. That stays so if the server began with an open umask and
/// the folder is opened for all.
#[test]
fn another_user_does_not_join_a_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let bench = &place.0;
    let own = bench.path("own");
    let line = format!("umask 0; exec {} mount image a", env!("CARGO_BIN_EXE_buttress"));
    let mut server = Command::new("sh");
    server.args(["-c", &line]).current_dir(bench.folder());
    succeeded(&server.env("BUTTRESS_RUNTIME_DIR", bench.path("run")).output().expect("it starts"));
    let socket = place.socket();
    assert_eq!(Place::connected(0, &socket), "connected");
    assert_eq!(Place::connected(STRANGER, &socket), "refused: Permission denied");

    let beside = ["mount", "image", "b"];
    // Without a server to ask, the lock of the volume refuses.
    refused(&place.stranger(&own, &beside), "is in use by process");
    refused(&place.stranger(&bench.path("run"), &beside), "is in use by process");
    fs::set_permissions(bench.path("run"), Permissions::from_mode(0o777)).expect("a mode");
    refused(&place.stranger(&bench.path("run"), &beside), "is in use by process");
    refused(&place.stranger(&bench.path("run"), &["stats"]), "not a folder of this user alone");
    assert_eq!(Place::connected(STRANGER, &socket), "refused: Permission denied");
    // A link to the folder is no folder of the stranger, either.
    let link = bench.path("link");
    std::os::unix::fs::symlink(bench.path("run"), &link).expect("a link");
    refused(&place.stranger(&link, &beside), "is in use by process");
    refused(&place.stranger(&link, &["stats"]), "not a folder of this user alone");
    for verb in [&["stats", "a"][..], &["subvolume", "snapshot", "a", "a/snap"], &["umount", "a"]] {
        let output = place.stranger(&own, verb);
        assert!(!output.status.success(), "{verb:?}: {output:?}");
    }
    assert!(place.is_mounted("a") && !place.is_mounted("b"));

    fs::set_permissions(bench.path("run"), Permissions::from_mode(0o700)).expect("a mode");
    bench.ok(&["mount", "image", "b"]);
    assert!(place.is_mounted("b"), "root joins");
    bench.ok(&["umount", "a", "b"]);
    check(&bench.path("image"));
}

/// Root does not take a folder of another user for its own, and so asks no server of that user.
#[test]
fn root_does_not_ask_in_a_folder_of_another_user() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let own = place.0.path("own");
    refused(&place.stranger(&own, &["stats", "image"]), "no mount or server of this user");
    let mut command = place.0.command(&["mount", "image", "a"]);
    let output = command.env("BUTTRESS_RUNTIME_DIR", &own).output().expect("it starts");
    // The volume is mounted without a socket, or not at all.
    if output.status.success() {
        place.0.ok(&["umount", "a"]);
    }
    let sockets = fs::read_dir(&own).expect("the stranger's folder").count();
    assert_eq!(sockets, 0, "{output:?}");
}
