//! Data moves while files change at the worst moment: after the mover has found the users of an
//! extent, and before it locks them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{Extent, Ino, TreeId};
use buttress_maintenance::Users;
use buttress_txn::SpaceKind;

use crate::upkeep::Holders;
use crate::{Filesystem, MakeOptions, MountOptions, NewInode, SetAttr};

const SECTOR: usize = 4096;
const FILES: u64 = 40;
const SECTORS: u64 = 16;

type Contents = BTreeMap<String, Vec<u8>>;

/// The changes of files, and the content that the files should have.
struct Changes {
    rng: Rng,
    files: Contents,
    snapshots: Vec<Contents>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

impl Changes {
    fn new(fs: &Filesystem, seed: u64) -> Self {
        let mut changes =
            Self { rng: Rng::new(seed), files: Contents::new(), snapshots: Vec::new() };
        for number in 0..FILES {
            changes.create(fs, format!("f{number}"));
        }
        changes.snapshot(fs);
        fs.sync().expect("durable");
        changes
    }

    fn create(&mut self, fs: &Filesystem, name: String) {
        let content = bytes(self.rng.next_u64(), SECTORS as usize * SECTOR);
        let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &content).expect("a write");
        file.flush_data().expect("it arrives");
        self.files.insert(name, content);
    }

    fn snapshot(&mut self, fs: &Filesystem) {
        let name = format!("s{}", self.snapshots.len());
        drop(fs.root().snapshot(name.as_bytes(), TreeId::FS, true).expect("a snapshot"));
        self.snapshots.push(self.files.clone());
    }

    fn change(&mut self, fs: &Filesystem) {
        let names: Vec<_> = self.files.keys().cloned().collect();
        let name = self.rng.choose(&names).expect("some file").clone();
        let file = fs.root().lookup(name.as_bytes()).expect("a file");
        let content = self.files.get_mut(&name).expect("it is known");
        let at = self.rng.below(SECTORS) as usize * SECTOR;
        match self.rng.below(12) {
            0..4 => {
                let new = bytes(self.rng.next_u64(), SECTOR);
                file.write_at(at as u64, &new).expect("a write");
                content.resize(content.len().max(at + SECTOR), 0);
                content[at..at + SECTOR].copy_from_slice(&new);
            }
            4 => {
                let size = Some(at as u64);
                file.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("a cut");
                content.resize(at, 0);
            }
            5..8 => {
                let from = self.rng.choose(&names).expect("some file").clone();
                let shown = self.files[&from].clone();
                if from == name || shown.is_empty() {
                    return;
                }
                let source = fs.root().lookup(from.as_bytes()).expect("a file");
                source.clone_range(0, &file, at as u64, shown.len() as u64).expect("a clone");
                let content = self.files.get_mut(&name).expect("it is known");
                content.resize(content.len().max(at + shown.len()), 0);
                content[at..at + shown.len()].copy_from_slice(&shown);
            }
            8 => {
                drop(file);
                fs.root().unlink(name.as_bytes()).expect("a name");
                self.files.remove(&name);
                let number = self.rng.next_u64();
                return self.create(fs, format!("n{number}"));
            }
            9 if self.snapshots.len() < 6 => return self.snapshot(fs),
            _ => return fs.sync().expect("durable"),
        }
        file.flush_data().expect("it arrives");
    }

    fn verify(&self, fs: &Filesystem) {
        let folders = (0..self.snapshots.len()).map(|at| format!("/s{at}/"));
        let all = folders.zip(&self.snapshots).chain([("/".to_owned(), &self.files)]);
        for (folder, files) in all {
            for (name, expected) in files {
                let file = fs.resolve(format!("{folder}{name}")).expect("a file");
                let mut found = vec![0; file.attr().size as usize];
                file.read_at(0, &mut found).expect("a read");
                assert!(found == *expected, "{folder}{name}");
            }
        }
    }
}

/// Changes files in some calls of `hold`, before the inodes are locked for the mover.
struct Between<'a> {
    fs: &'a Filesystem,
    below: Holders<'a>,
    changes: RefCell<Changes>,
}

impl Users for Between<'_> {
    fn hold(
        &self,
        inodes: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> buttress_txn::Result<()>,
    ) -> buttress_txn::Result<()> {
        let mut changes = self.changes.borrow_mut();
        if changes.rng.chance(1, 3) {
            changes.change(self.fs);
        }
        drop(changes);
        self.below.hold(inodes, work)
    }

    fn wrote(&self, extent: Extent) {
        self.below.wrote(extent);
    }
}

#[test]
fn mover_sees_changes_that_come_after_its_search() {
    for seed in 0..6 {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(512 << 20));
        Filesystem::make(&*device, &MakeOptions::default()).expect("an empty volume");
        let options = MountOptions::parse("rw,commit=300").expect("options");
        let fs = Filesystem::open(vec![Arc::clone(&device)], options).expect("a mount");
        let changes = RefCell::new(Changes::new(&fs, seed));
        let mount = fs.mount();
        let between = Between { fs: &fs, below: mount.holders(), changes };
        let engine = &fs.mount().engine;
        for _ in 0..3 {
            let groups = engine.group_fill().into_iter().map(|(start, ..)| start);
            let is_data = |start| {
                let group = engine.storage().space().group_at(start);
                group.is_some_and(|group| group.kind() == SpaceKind::Data)
            };
            for start in groups.filter(|start| is_data(*start)).collect::<Vec<_>>() {
                let moved = fs.mount().maintenance.relocate_group(start, &between, &mut |_| ());
                moved.expect("it moves");
            }
            between.changes.borrow().verify(&fs);
        }
        drop(between);
        fs.close().expect("closed");
        let options = buttress_check::Options::thorough();
        let devices = vec![device];
        let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
        let report = report.expect("it can be looked at");
        assert!(report.is_clean(), "seed {seed}: {}", report.to_text());
    }
}
