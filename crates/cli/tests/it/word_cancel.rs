//! Work on devices that another command cancels.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::live::Mounted;
use crate::words::{bench_of_words, program, said};
use crate::{Bench, text};

/// A connection that keeps the last commit of a mount. No block group with data of this commit can
/// be removed, so no device can be removed or shrunk before the connection ends.
fn hold(bench: &Bench, mounted: &Mounted<'_>) -> UnixStream {
    let socket = bench.path("run").join(format!("{}.sock", mounted.pid()));
    let mut server = UnixStream::connect(socket).expect("it listens");
    server.write_all(b"hold\n").expect("it takes a question");
    let mut line = String::new();
    BufReader::new(&server).read_line(&mut line).expect("an answer");
    assert!(line.contains("held"), "{line}");
    server
}

/// Begins work that cannot end, cancels it, and returns what its command says.
fn begin_and_cancel(bench: &Bench, ours: &Path, work: &[&str], cancel: &[&str]) -> String {
    let mut command = program(bench, ours);
    let child = command.args(work).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it starts");
    let begun = Instant::now();
    loop {
        let (told, code) = said(bench, ours, cancel);
        assert_eq!(code, Some(1), "as on Linux, the request fails in any case: {told}");
        if told.contains("Operation canceled") {
            break;
        }
        assert!(told.contains("Transport endpoint is not connected"), "{told}");
        assert!(begun.elapsed() < Duration::from_secs(50), "{work:?} does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running resize and a running removal are cancelled. The device keeps its size and its place,
/// and both succeed later.
#[test]
fn running_work_on_devices_is_cancelled() {
    let Some((bench, ours)) = bench_of_words() else { return };
    let second = bench.path("second");
    File::create(&second).expect("a file").set_len(1 << 30).expect("a size");
    File::options().write(true).open(bench.path("image")).expect("it").set_len(1 << 30).expect("");
    let mounted = Mounted::new(&bench, &[]);
    let top = bench.path("mnt");
    let top = text(&top);
    let ok = |words: &[&str]| {
        let (told, code) = said(&bench, &ours, words);
        assert_eq!(code, Some(0), "{words:?}: {told}");
        told
    };
    ok(&["filesystem", "resize", "max", top]);
    let write = |name: &str, mib: usize| {
        fs::write(bench.path("mnt").join(name), vec![7; mib << 20]).expect("room");
        ok(&["filesystem", "sync", top]);
    };
    // Data far behind is left where it lies when the data before it goes.
    write("before", 450);
    write("behind", 20);
    fs::remove_file(bench.path("mnt/before")).expect("removed");
    ok(&["filesystem", "sync", top]);
    let shown = ok(&["filesystem", "show", "--raw", top]);

    let held = hold(&bench, &mounted);
    let work = ["filesystem", "resize", "1:400m", top];
    let told = begin_and_cancel(&bench, &ours, &work, &["filesystem", "resize", "cancel", top]);
    assert_eq!(told, format!("ERROR: unable to resize '{top}': Operation canceled\n"));
    drop(held);
    let size = |shown: &str| {
        let line = shown.lines().find(|line| line.contains("devid    1")).expect("a device");
        line.split_whitespace().nth(3).expect("a size").to_owned()
    };
    assert_eq!(size(&shown), size(&ok(&["filesystem", "show", "--raw", top])));
    ok(&work);
    assert_eq!(size(&ok(&["filesystem", "show", "--raw", top])), (400 << 20).to_string());

    ok(&["device", "add", text(&second), top]);
    // New groups lie on the device with more free space.
    write("new", 200);
    let held = hold(&bench, &mounted);
    let work = ["device", "remove", "2", top];
    let told = begin_and_cancel(&bench, &ours, &work, &["device", "remove", "cancel", top]);
    assert_eq!(told, "ERROR: error removing devid 2: Operation canceled\n");
    drop(held);
    assert!(ok(&["filesystem", "show", top]).contains("devid    2"));
    fs::remove_file(bench.path("mnt/new")).expect("removed");
    ok(&work);
    let own = bench.run(&["filesystem", "resize", "cancel", top]);
    assert_eq!(own.status.code(), Some(2), "nothing is left to cancel: {own:?}");
    mounted.end();
    bench.ok(&["check", "--check-data-csum", "image"]);
    crate::checker::check(&bench.path("image"));
}
