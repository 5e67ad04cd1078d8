//! fs-verity from the command line, in streams, and as the program `fsverity` has it.

use std::process::Command;

use crate::checker::check;

/// What the program `fsverity` computes for a file of the host.
fn theirs(path: &std::path::Path, args: &[&str]) -> Option<String> {
    let output = Command::new("fsverity").arg("digest").args(args).arg(path).output();
    let Ok(output) = output else {
        eprintln!("not checked: fsverity is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(said.split(' ').next().unwrap_or_default().to_owned())
}

/// The digest at the front of the first line.
fn digest(said: &str) -> String {
    said.split(' ').next().unwrap_or_default().to_owned()
}

/// A file gets a tree, keeps its content, and is sent and received with its tree.
#[test]
fn files_are_enabled_measured_and_sent() {
    let bench = crate::bench();
    bench.volume("v.img", "256M");
    bench.volume("w.img", "256M");
    std::fs::write(bench.path("words"), "words ".repeat(100_000)).expect("a file");
    bench.ok(&["subvolume", "create", "v.img:/s"]);
    for name in ["plain", "one", "two"] {
        bench.ok(&["cp", "words", &format!("v.img:/s/{name}")]);
    }
    bench.fails(&["fsverity", "measure", "v.img:/s/one"], 1, &["no fs-verity"]);
    for (name, args) in [
        ("one", &[][..]),
        ("two", &["--hash-alg", "sha512", "--block-size", "1024", "--salt", "00ff17"][..]),
    ] {
        let place = format!("v.img:/s/{name}");
        let before = bench.ok(&[&["fsverity", "digest", &place], args].concat());
        bench.ok(&[&["fsverity", "enable", &place], args].concat());
        let measured = bench.ok(&["fsverity", "measure", &place]);
        assert_eq!(measured, before);
        assert!(measured.ends_with(&format!(" {place}\n")), "{measured}");
        let host = bench.ok(&[&["fsverity", "digest", "words"], args].concat());
        assert_eq!(digest(&host), digest(&measured));
        let compact = bench.ok(&[&["fsverity", "digest", "--compact", "words"], args].concat());
        assert!(digest(&measured).ends_with(compact.trim()), "{compact}");
        if let Some(theirs) = theirs(&bench.path("words"), args) {
            assert_eq!(digest(&measured), theirs);
        }
        bench.fails(&["fsverity", "enable", &place], 1, &["already"]);
        bench.fails(&["cp", "words", &place], 1, &["forbidden"]);
        assert_eq!(bench.ok(&["cat", &place]), "words ".repeat(100_000));
    }
    bench.fails(&["fsverity", "enable", "v.img:/s/plain", "--salt", "0"], 2, &["hexadecimal"]);
    bench.fails(&["fsverity", "enable", "v.img:/s/plain", "--hash-alg", "md5"], 2, &["sha512"]);
    bench.fails(&["fsverity", "enable", "v.img:/s/plain", "--block-size", "100"], 2, &["power"]);
    bench.fails(&["fsverity", "enable", "v.img:/s"], 1, &[]);
    check(&bench.path("v.img"));
    bench.ok(&["check", "--check-data-csum", "v.img"]);

    bench.ok(&["subvolume", "snapshot", "-r", "v.img:/s", "v.img:/r"]);
    bench.ok(&["send", "v.img:/r", "--proto", "3", "-f", "stream"]);
    bench.ok(&["receive", "-f", "stream", "w.img:/"]);
    let dumped = bench.ok(&["receive", "--dump", "-f", "stream"]);
    let lines = dumped.lines().filter(|line| line.starts_with("enable_verity")).count();
    assert_eq!(lines, 2, "{dumped}");
    for name in ["one", "two"] {
        let [sent, received] = ["v", "w"].map(|volume| {
            digest(&bench.ok(&["fsverity", "measure", &format!("{volume}.img:/r/{name}")]))
        });
        assert_eq!(sent, received, "{name}");
    }
    bench.fails(&["fsverity", "measure", "w.img:/r/plain"], 1, &["no fs-verity"]);
    check(&bench.path("w.img"));

    // The next stream has what came since, and older streams have the content alone.
    bench.ok(&["fsverity", "enable", "v.img:/s/plain"]);
    bench.ok(&["subvolume", "snapshot", "-r", "v.img:/s", "v.img:/q"]);
    bench.ok(&["send", "v.img:/q", "-p", "v.img:/r", "--proto", "3", "-f", "more"]);
    bench.ok(&["receive", "-f", "more", "w.img:/"]);
    let measured = bench.ok(&["fsverity", "measure", "w.img:/q/plain", "w.img:/q/one"]);
    assert_eq!(measured.lines().count(), 2, "{measured}");
    check(&bench.path("w.img"));
    bench.volume("x.img", "256M");
    bench.ok(&["send", "v.img:/q", "--proto", "2", "--compressed-data", "-f", "old"]);
    bench.ok(&["receive", "-f", "old", "x.img:/"]);
    bench.fails(&["fsverity", "measure", "x.img:/q/one"], 1, &["no fs-verity"]);
    assert_eq!(bench.ok(&["cat", "x.img:/q/one"]), "words ".repeat(100_000));
}
