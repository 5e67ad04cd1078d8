//! A crash at any point of a commit leaves the commit before or this one, whatever subset of the
//! unflushed writes reached the device (T8).
//!
//! The device keeps what was flushed and a list of what was not. At every write and flush of a run
//! of commits it makes the states a power cut could leave: nothing of the list, all of it, and
//! random subsets torn at sectors. Each is opened and compared.

use std::{collections::BTreeMap, io::IoSlice, sync::Arc};

use buttress_base::Rng;
use buttress_block::{Device, Error, MemoryDevice};
use buttress_format::{Generation, Key, Kind, TreeId};
use buttress_fs::make::{MakeOptions, make};
use buttress_sim::campaign;
use buttress_txn::{Cost, Engine, EngineOptions, Urgency};
use buttress_volume::{OpenOptions, Volume};
use parking_lot::Mutex;

const SECTOR: usize = 512;
const TREE: TreeId = TreeId::UUID;

#[derive(Debug)]
struct State {
    durable: MemoryDevice,
    unflushed: Vec<(u64, Vec<u8>)>,
    crashes: Vec<MemoryDevice>,
    rng: Rng,
    recording: bool,
}

impl State {
    /// The states that a power cut here could leave.
    fn crash(&mut self) {
        if !self.recording {
            return;
        }
        self.crashes.push(self.durable.fork());
        if self.unflushed.is_empty() {
            return;
        }
        for keep_in_ten in [10, 5, 9, 2] {
            let torn = self.durable.fork();
            for (offset, bytes) in &self.unflushed {
                for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                    if self.rng.chance(keep_in_ten, 10) {
                        let at = offset + (index * SECTOR) as u64;
                        torn.write_at(at, sector).expect("memory takes it");
                    }
                }
            }
            self.crashes.push(torn);
        }
    }
}

/// A device that remembers what it could lose.
#[derive(Debug)]
struct Fragile {
    seen: MemoryDevice,
    state: Mutex<State>,
}

impl Fragile {
    fn new(device: &MemoryDevice, seed: u64) -> Self {
        let state = State {
            durable: device.fork(),
            unflushed: Vec::new(),
            crashes: Vec::new(),
            rng: Rng::new(seed),
            recording: false,
        };
        Self { seen: device.fork(), state: Mutex::new(state) }
    }
}

impl Device for Fragile {
    fn name(&self) -> String {
        "fragile".into()
    }

    fn len(&self) -> u64 {
        self.seen.len()
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.seen.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.unflushed.push((offset, buf.to_vec()));
        state.crash();
        self.seen.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let whole: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(offset, &whole)
    }

    fn flush(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.crash();
        for (offset, bytes) in std::mem::take(&mut state.unflushed) {
            state.durable.write_at(offset, &bytes)?;
        }
        state.crash();
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}

type Model = BTreeMap<Key, Vec<u8>>;

fn open(device: Arc<dyn Device>) -> Arc<Engine> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open(vec![device], options).expect("a volume");
    Engine::open(Arc::new(volume), superblock, EngineOptions::default()).expect("the trees open")
}

fn content(engine: &Engine) -> Model {
    let view = engine.view();
    view.range(TREE, Key::MIN, Key::MAX)
        .map(|found| found.map(|(key, item)| (key, item.to_vec())))
        .collect::<Result<_, _>>()
        .expect("every node that the superblock reaches is whole")
}

fn run(seed: u64) -> usize {
    let fresh = MemoryDevice::new(512 << 20);
    let options = MakeOptions { nodesize: 4096, seed: Some(seed), ..MakeOptions::default() };
    make(&fresh, &options).expect("a volume");
    let device = Arc::new(Fragile::new(&fresh, seed));
    let engine = open(Arc::clone(&device) as Arc<dyn Device>);
    let mut rng = Rng::new(seed);
    let mut models: BTreeMap<Generation, Model> = BTreeMap::new();
    models.insert(engine.published(), content(&engine));
    let mut model = content(&engine);
    device.state.lock().recording = true;
    for _ in 0..12 {
        for _ in 0..rng.range(1..400) {
            let key = Key::new(rng.below(2000), Kind::UUID_KEY_SUBVOL, 0);
            let cost = Cost { items: 1, bytes: 300 };
            let handle = engine.begin(engine.reserve(cost, Urgency::Normal).expect("space"));
            if rng.chance(3, 10) {
                handle.delete(TREE, key);
                model.remove(&key);
            } else {
                let mut payload = vec![0; rng.below(300) as usize];
                rng.fill(&mut payload);
                handle.put(TREE, key, payload.clone());
                model.insert(key, payload);
            }
        }
        let generation = engine.commit().expect("the commit");
        models.insert(generation, model.clone());
        let durable = newest(&device.state.lock().durable);
        assert_eq!(durable, generation, "what is acknowledged is durable");
    }
    let crashes = std::mem::take(&mut device.state.lock().crashes);
    let count = crashes.len();
    for (index, crash) in crashes.into_iter().enumerate() {
        let engine = open(Arc::new(crash));
        let expected = models.get(&engine.published());
        assert_eq!(
            Some(&content(&engine)),
            expected,
            "seed {seed}, state {index}: not a commit's content"
        );
    }
    count
}

fn newest(device: &MemoryDevice) -> Generation {
    Volume::read_superblock(device).expect("a superblock").generation
}

#[test]
fn every_crash_state_is_a_commit() {
    let mut states = 0;
    for seed in campaign::seeds(1..7) {
        states += run(seed);
    }
    campaign::count("states", states);
    assert!(states > 500, "only {states} states were seen");
}
