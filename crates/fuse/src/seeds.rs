//! The seeds of a threaded test: `BUTTRESS_SEED=n` runs one seed, `BUTTRESS_SEEDS=first..last` runs
//! several.

/// The seeds that this run is for.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse().expect("a number");
    if let Ok(seed) = std::env::var("BUTTRESS_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let seeds = std::env::var("BUTTRESS_SEEDS").unwrap_or_else(|_| "1..120".to_owned());
    let (first, last) = seeds.split_once("..").expect("first..last");
    number(first)..number(last) + 1
}
