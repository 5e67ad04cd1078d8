//! Streams of random histories: Linux receives our streams, and we receive streams of Linux and our
//! own streams. Damaged streams are refused.

mod history;
mod long;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use buttress_base::Rng;
use buttress_block::FileDevice;
use buttress_fs::make::make;
use buttress_fs::{Filesystem, MakeOptions, TreeId};
use buttress_interop::linux::{Images, Mount, has_linux_btrfs, run, try_run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::{buttress, program};
use buttress_send::stream::Version;
use buttress_send::{Error, SendOptions, Subvolumes, receive, send};

use crate::open::{close, open, open_with};
use history::History;

const SNAPSHOTS: usize = 4;

/// A volume of Linux with read-only snapshots `s0`, `s1`, ... of a history, and their contents.
struct Original {
    images: Images,
    manifests: Vec<Manifest>,
}

impl Original {
    fn new(seed: u64, options: &str, steps: usize) -> Self {
        let images = Images::new(1, 2 << 30);
        images.mkfs(&[]);
        let mount = images.mount(options);
        mount.shell("btrfs -q subvolume create live; mkdir snapshots");
        let mut history = History::new(&mount.path().join("live"), seed);
        for number in 0..SNAPSHOTS {
            history.go_on(steps);
            mount.shell(&format!("btrfs -q subvolume snapshot -r live snapshots/s{number}"));
        }
        mount.unmount();
        // The state on disk counts, not the writer's cache.
        let mount = images.mount("ro");
        let manifests = manifests(&mount.path().join("snapshots"));
        mount.unmount();
        Self { images, manifests }
    }

    /// Our streams of all snapshots. The first stream is full, and each later one has the previous
    /// snapshot as its parent.
    fn our_streams(&self, version: Version) -> Vec<PathBuf> {
        let filesystem = open(self.images.paths(), false);
        let streams = (0..SNAPSHOTS)
            .map(|number| {
                let mut options = SendOptions::new(tree(&filesystem, number));
                options.parent = number.checked_sub(1).map(|older| tree(&filesystem, older));
                options.version = version;
                options.compressed_data = version == Version::Two;
                self.stream(&filesystem, &options, &format!("ours-{}-{number}", version as u32))
            })
            .collect();
        close(filesystem);
        streams
    }

    #[track_caller]
    fn stream(&self, filesystem: &Filesystem, options: &SendOptions, name: &str) -> PathBuf {
        let path = self.images.scratch().join(name);
        let file = File::create(&path).expect("a file for the stream");
        let mut file = send(filesystem, options, file).unwrap_or_else(|error| panic!("{error}"));
        file.flush().expect("written");
        path
    }

    /// Linux's streams of all snapshots.
    fn linux_streams(&self, arguments: &str) -> Vec<PathBuf> {
        let mount = self.images.mount("");
        let streams = (0..SNAPSHOTS).map(|number| {
            let path = self.images.scratch().join(&format!("linux-{}-{number}", arguments.len()));
            let parent = match number.checked_sub(1) {
                Some(older) => format!("-p snapshots/s{older}"),
                None => String::new(),
            };
            let to = path.display();
            mount.shell(&format!("btrfs -q send {arguments} {parent} -f {to} snapshots/s{number}"));
            path
        });
        let streams = streams.collect();
        mount.unmount();
        streams
    }

    /// Linux's sender makes new inodes at the top and moves them, so the top has the time of the
    /// moves.
    fn forgive_top(&self, received: &mut [Manifest]) {
        for (sent, received) in self.manifests.iter().zip(received) {
            let tops = (sent.entries.get(&b""[..]), received.entries.get_mut(&b""[..]));
            if let (Some(sent), Some(received)) = tops {
                received.mtime = sent.mtime;
            }
        }
    }

    #[track_caller]
    fn assert_received(&self, what: &str, received: &[Manifest]) {
        assert_eq!(received.len(), self.manifests.len());
        for (number, (sent, received)) in self.manifests.iter().zip(received).enumerate() {
            let name = format!("snapshot {number}");
            sent.assert_same(&name, received, what, Depth::Copy);
        }
    }
}

fn manifests(folder: &Path) -> Vec<Manifest> {
    (0..SNAPSHOTS).map(|number| Manifest::of_folder(&folder.join(format!("s{number}")))).collect()
}

fn tree(filesystem: &Filesystem, number: usize) -> TreeId {
    filesystem.resolve(format!("snapshots/s{number}")).expect("a snapshot").id().tree
}

/// Makes a volume with Linux that receives streams with `btrfs receive`.
fn linux_receives(streams: &[PathBuf]) -> (Images, Mount) {
    let images = Images::new(1, 2 << 30);
    images.mkfs(&[]);
    let mount = images.mount("");
    for stream in streams {
        let words = ["-q".as_ref(), "receive".as_ref(), mount.path().as_os_str()];
        run("btrfs", words.into_iter().chain(["-f".as_ref(), stream.as_os_str()]));
    }
    mount.unmount();
    let mount = images.mount("ro");
    (images, mount)
}

/// Makes an empty volume of ours.
fn our_volume() -> Images {
    let images = Images::new(1, 2 << 30);
    let device = FileDevice::create(images.path(), 2 << 30).expect("the image opens");
    let options = MakeOptions { seed: Some(5), ..MakeOptions::default() };
    make(&device, &options).expect("a new volume");
    images
}

fn try_receive(filesystem: &Filesystem, stream: &[u8]) -> Result<usize, Error> {
    receive(&Subvolumes::new(filesystem, filesystem.root()), stream, |_| {})
}

/// Receives streams into a volume of ours. Returns its content as we see it, and as Linux sees it.
#[track_caller]
fn we_receive(streams: &[PathBuf]) -> (Vec<Manifest>, Vec<Manifest>) {
    let images = our_volume();
    let filesystem = open(images.paths(), true);
    for stream in streams {
        let bytes = std::fs::read(stream).expect("a stream");
        if let Err(error) = try_receive(&filesystem, &bytes) {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            panic!("{}: {text}", stream.display());
        }
    }
    close(filesystem);
    images.check();
    let ours = (0..SNAPSHOTS).map(|number| {
        let filesystem = open_with(images.paths(), &format!("ro,noatime,subvol=s{number}"));
        let manifest = Manifest::of_library(&filesystem);
        close(filesystem);
        manifest
    });
    let ours = ours.collect();
    let mount = images.mount("ro");
    let linux = manifests(mount.path());
    for number in 0..SNAPSHOTS {
        let shown = mount.shell(&format!("btrfs subvolume show s{number}"));
        assert!(shown.contains("readonly"), "{shown}");
        let received = shown.lines().find(|line| line.contains("Received UUID"));
        assert!(received.is_some_and(|line| !line.trim().ends_with('-')), "{shown}");
    }
    mount.unmount();
    (ours, linux)
}

/// From our streams, Linux makes the files that were sent. Shared data is shared again.
#[test]
pub(crate) fn linux_receives_our_streams() {
    if !has_linux_btrfs() {
        return;
    }
    for (seed, options) in [(1, ""), (2, "compress=zstd"), (3, "compress-force=lzo")] {
        let original = Original::new(seed, options, 150);
        for version in [Version::One, Version::Two] {
            let (images, mount) = linux_receives(&original.our_streams(version));
            original.assert_received("what Linux received", &manifests(mount.path()));
            mount.unmount();
            images.check();
        }
    }
}

/// Sends in both directions for as many histories as `BUTTRESS_SEEDS` says, from seed 100 on.
#[test]
#[ignore = "for long runs"]
fn many_histories() {
    let seeds = std::env::var("BUTTRESS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 100..100 + seeds.unwrap_or(10_u64) {
        eprintln!("seed {seed}");
        let options = ["", "compress=zstd", "compress-force=lzo", "compress=zlib"];
        let original = Original::new(seed, options[seed as usize % 4], 60 + seed as usize % 200);
        let version = if seed % 2 == 0 { Version::One } else { Version::Two };
        let ours = original.our_streams(version);
        let (_images, mount) = linux_receives(&ours);
        original.assert_received("what Linux received", &manifests(mount.path()));
        mount.unmount();
        let (received, _) = we_receive(&ours);
        original.assert_received("what we received of ours", &received);
        let streams = original.linux_streams("--proto 2 --compressed-data");
        let (mut received, _) = we_receive(&streams);
        original.forgive_top(&mut received);
        original.assert_received("what we received of Linux's", &received);
    }
}

/// From Linux's streams, and from ours, we make the files that were sent. Linux finds no fault.
#[test]
pub(crate) fn we_receive_streams() {
    if !has_linux_btrfs() {
        return;
    }
    let original = Original::new(4, "compress=zstd", 150);
    let sets = [
        ("Linux's, version 1", original.linux_streams("--proto 1")),
        ("Linux's, compressed", original.linux_streams("--proto 2 --compressed-data")),
        ("ours, version 1", original.our_streams(Version::One)),
        ("ours, version 2", original.our_streams(Version::Two)),
    ];
    for (what, streams) in sets {
        let (mut ours, mut linux) = we_receive(&streams);
        if what.starts_with("Linux") {
            original.forgive_top(&mut ours);
            original.forgive_top(&mut linux);
        }
        original.assert_received(&format!("what we received of {what}"), &ours);
        original.assert_received(&format!("what Linux sees of {what}"), &linux);
    }
}

/// A full stream takes data from clone sources that the receiver has.
#[test]
pub(crate) fn clone_sources_save_data() {
    if !has_linux_btrfs() {
        return;
    }
    let original = Original::new(6, "", 150);
    let mut streams = original.our_streams(Version::One);
    let filesystem = open(original.images.paths(), false);
    let last = SNAPSHOTS - 1;
    let mut options = SendOptions::new(tree(&filesystem, last));
    let alone = original.stream(&filesystem, &options, "alone");
    options.clone_sources = (0..last).map(|number| tree(&filesystem, number)).collect();
    let cloning = original.stream(&filesystem, &options, "cloning");
    close(filesystem);
    let len = |path: &Path| path.metadata().expect("a stream").len();
    assert!(len(&cloning) * 2 < len(&alone), "{} of {}", len(&cloning), len(&alone));
    streams[last] = cloning;
    let (_images, mount) = linux_receives(&streams);
    original.assert_received("what Linux received", &manifests(mount.path()));
    mount.unmount();
    let (ours, _) = we_receive(&streams);
    original.assert_received("what we received", &ours);
}

/// A stream that is cut or damaged ends in an error that names the incomplete subvolume. The volume
/// stays sound.
#[test]
fn damaged_streams_are_refused() {
    if !has_linux_btrfs() {
        return;
    }
    let original = Original::new(7, "", 60);
    let stream = std::fs::read(&original.our_streams(Version::Two)[0]).expect("a stream");
    let images = our_volume();
    let filesystem = open(images.paths(), true);
    let mut rng = Rng::new(8);
    for round in 0..40 {
        let mut damaged = stream.clone();
        let at = 200 + rng.below(damaged.len() as u64 - 201) as usize;
        if round % 2 == 0 {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << rng.below(8);
        }
        let error = try_receive(&filesystem, &damaged).expect_err("damage");
        let Error::Incomplete { name, .. } = &error else { panic!("{error}") };
        assert_eq!(name, "s0");
        filesystem.root().delete_subvolume(b"s0").expect("the incomplete one goes");
    }
    assert_eq!(try_receive(&filesystem, &stream).expect("the whole one"), 1);
    close(filesystem);
    images.check();
}

/// A stream without its parent, or for an existing subvolume, is refused with the messages that
/// users know.
#[test]
fn streams_without_their_parent_are_refused() {
    if !has_linux_btrfs() {
        return;
    }
    let original = Original::new(9, "", 20);
    let streams = original.our_streams(Version::One);
    let read = |number: usize| std::fs::read(&streams[number]).expect("a stream");
    let images = our_volume();
    let filesystem = open(images.paths(), true);
    let error = try_receive(&filesystem, &read(1)).expect_err("no parent");
    assert!(error.to_string().contains("cannot find parent subvolume"), "{error}");
    assert!(matches!(try_receive(&filesystem, b""), Err(Error::Stream(_))));
    let both = [read(0), read(1)].concat();
    assert_eq!(try_receive(&filesystem, &both).expect("two streams in one"), 2);
    try_receive(&filesystem, &read(0)).expect_err("the name is taken");
    close(filesystem);
    images.check();
    // A subvolume that may change is not sent.
    let filesystem = open(original.images.paths(), false);
    let live = filesystem.resolve("live").expect("a subvolume").id().tree;
    let sent = send(&filesystem, &SendOptions::new(live), Vec::new());
    assert!(matches!(sent, Err(Error::NotReadOnly)));
    close(filesystem);
}

/// The program does what the library does, prints what `btrfs receive --dump` prints, and refuses
/// with the messages that users know.
#[test]
fn the_program_sends_and_receives() {
    if !has_linux_btrfs() {
        return;
    }
    let original = Original::new(10, "compress=zstd", 60);
    let image = original.images.path().display().to_string();
    let target = our_volume();
    let into = format!("{}:/", target.path().display());
    for number in 0..SNAPSHOTS {
        let stream = original.images.scratch().join(&format!("program-{number}"));
        let stream = stream.to_str().expect("a plain name");
        let subvolume = format!("{image}:/snapshots/s{number}");
        let mut words = vec!["send", "--quiet", "--proto", "2", "--compressed-data", "-f", stream];
        let parent = format!("/snapshots/s{}", number.wrapping_sub(1));
        if number > 0 {
            words.extend(["-p", &parent]);
        }
        words.push(&subvolume);
        buttress(words);
        let ours = buttress(["receive", "--dump", "-f", stream]);
        let theirs = run("env", ["TZ=UTC", "btrfs", "receive", "--dump", "-f", stream]);
        // `btrfs receive --dump` does not escape values that are no text.
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.contains("set_xattr")).map(str::to_owned).collect()
        };
        assert_eq!(lines(&ours), lines(&theirs));
        buttress(["receive", "--quiet", "-f", stream, &into]);
    }
    target.check();
    let mount = target.mount("ro");
    original.assert_received("what the program received", &manifests(mount.path()));
    mount.unmount();
    let refused = |words: &[&str]| {
        try_run(program().to_str().expect("a plain name"), words).expect_err("a refusal")
    };
    let live = format!("{image}:/live");
    assert!(refused(&["send", "-f", "/dev/null", &live]).contains("is not read-only"));
    let folder = format!("{image}:/snapshots");
    assert!(refused(&["send", "-f", "/dev/null", &folder]).contains("not a subvolume"));
    let second = original.images.scratch().join("program-1");
    let second = second.to_str().expect("a plain name");
    let empty = our_volume();
    let nowhere = format!("{}:/", empty.path().display());
    let refusal = refused(&["receive", "-f", second, &nowhere]);
    assert!(refusal.contains("cannot find parent subvolume"), "{refusal}");
}
