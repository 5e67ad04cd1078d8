//! A crash at any point of a commit leaves this commit or the previous one, whatever subset of the
//! unflushed writes reached the device (T8).
//!
//! The test cuts the power at every write and flush of a series of commits. The device then has
//! none of the unflushed writes, all of them, or subsets torn at sectors. The test opens each such
//! state and compares it.

use std::{collections::BTreeMap, sync::Arc};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{Generation, Key, Kind, TreeId};
use buttress_fs::make::{MakeOptions, make};
use buttress_sim::{Log, campaign};
use buttress_txn::{Cost, Engine, EngineOptions, ReserveClass};
use buttress_volume::{OpenOptions, Volume};

const SECTOR: usize = 512;
const TREE: TreeId = TreeId::UUID;

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
    let log = Log::new();
    let device = log.device(&fresh, SECTOR);
    let engine = open(Arc::clone(&device) as Arc<dyn Device>);
    let mut rng = Rng::new(seed);
    let mut models: BTreeMap<Generation, Model> = BTreeMap::new();
    models.insert(engine.commits().published(), content(&engine));
    let mut model = content(&engine);
    log.start(&[&device]);
    for _ in 0..12 {
        for _ in 0..rng.range(1..400) {
            let key = Key::new(rng.below(2000), Kind::UUID_KEY_SUBVOL, 0);
            let cost = Cost::of(1, 300);
            let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
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
        log.mark(generation.0);
    }
    log.crashes(&mut rng, 3, 1, |crash| {
        let engine = open(Arc::new(crash.devices[0].fork()));
        let (found, when) = (engine.commits().published(), (seed, crash.event, crash.draw));
        assert!(
            found.0 >= crash.mark.unwrap_or(0),
            "{when:?}: {found:?} is older than what was acknowledged"
        );
        assert_eq!(Some(&content(&engine)), models.get(&found), "{when:?}: not a commit's content");
    })
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
