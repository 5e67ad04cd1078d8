//! The largest circle of imports in a crate: modules that cannot be understood or changed apart.
//!
//! # What must hold
//!
//! - An import leads to the file that defines the name, through every re-export on the way. So a
//!   root that only re-exports hides no circle.
//! - A module does not depend on its own children only because it re-exports them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::sources::{Segments, Source};

/// The length to which a chain of re-exports is followed. A longer chain must be a circle.
const HOPS_MAX: u32 = 16;

/// The largest circle of a crate.
#[derive(Clone, Debug, Default)]
pub(super) struct Knot {
    /// Lines of the files in it; zero if there is no circle.
    pub(super) lines: usize,
    /// The modules in it.
    pub(super) modules: Vec<String>,
}

/// The largest circle among files.
pub(super) fn of_files(sources: &[Source]) -> Knot {
    largest(sources, |source| source.module.join("::"))
}

/// The largest circle among the modules that the root names.
pub(super) fn of_top_modules(sources: &[Source]) -> Knot {
    largest(sources, |source| source.module.first().cloned().unwrap_or_default())
}

fn largest(sources: &[Source], name: impl Fn(&Source) -> String) -> Knot {
    let modules: HashMap<&Segments, &Source> =
        sources.iter().map(|source| (&source.module, source)).collect();
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let from = name(source);
        *lines.entry(from.clone()).or_default() += source.production_lines();
        let targets = uses.entry(from.clone()).or_default();
        for path in &source.mentions {
            if let Some(target) = resolve(&modules, source, path, 0) {
                let to = name(target);
                if to != from {
                    targets.insert(to);
                }
            }
        }
    }
    let circles = circles(&uses);
    let weigh = |circle: &Vec<String>| circle.iter().map(|name| lines[name]).sum::<usize>();
    let Some(modules) = circles.into_iter().filter(|circle| circle.len() > 1).max_by_key(weigh)
    else {
        return Knot::default();
    };
    Knot { lines: weigh(&modules), modules }
}

/// The file that defines the item at `path`, seen from `from`. `None` for items of other crates.
fn resolve<'a>(
    modules: &HashMap<&Segments, &'a Source>,
    from: &'a Source,
    path: &[String],
    hops: u32,
) -> Option<&'a Source> {
    if hops > HOPS_MAX {
        return None;
    }
    let mut at = from.module.clone();
    let mut rest = path;
    let mut anchored = false;
    while let Some(first) = rest.first() {
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            _ => break,
        }
        anchored = true;
        rest = &rest[1..];
    }
    let mut here = *modules.get(&at)?;
    if !anchored && !knows(modules, here, rest.first()?) {
        return None;
    }
    while let Some((first, more)) = rest.split_first() {
        let mut below = at.clone();
        below.push(first.clone());
        if let Some(child) = modules.get(&below) {
            (at, here, rest) = (below, child, more);
            continue;
        }
        if here.defines.contains(first) {
            return Some(here);
        }
        if let Some(target) = here.imports.get(first) {
            if target.as_slice() == path && here.module == from.module {
                return None;
            }
            let whole: Segments = target.iter().chain(more).cloned().collect();
            return resolve(modules, here, &whole, hops + 1);
        }
        return here.globs.iter().find_map(|glob| {
            let whole: Segments = glob.iter().chain(rest).cloned().collect();
            resolve(modules, here, &whole, hops + 1)
        });
    }
    Some(here)
}

/// Whether a path that begins with `first` leads to an item of this crate.
fn knows(modules: &HashMap<&Segments, &Source>, here: &Source, first: &String) -> bool {
    let mut below = here.module.clone();
    below.push(first.clone());
    modules.contains_key(&below)
        || here.imports.get(first).is_some_and(|path| path.first() != Some(first))
}

/// Tarjan's strongly connected components.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    struct Walk<'a> {
        uses: &'a BTreeMap<String, BTreeSet<String>>,
        index: HashMap<&'a str, usize>,
        low: HashMap<&'a str, usize>,
        stack: Vec<&'a str>,
        found: Vec<Vec<String>>,
    }
    impl<'a> Walk<'a> {
        fn visit(&mut self, name: &'a str) {
            let index = self.index.len();
            self.index.insert(name, index);
            self.low.insert(name, index);
            self.stack.push(name);
            for next in self.uses.get(name).into_iter().flatten() {
                if !self.index.contains_key(next.as_str()) {
                    self.visit(next);
                    let low = self.low[name].min(self.low[next.as_str()]);
                    self.low.insert(name, low);
                } else if self.stack.contains(&next.as_str()) {
                    let low = self.low[name].min(self.index[next.as_str()]);
                    self.low.insert(name, low);
                }
            }
            if self.low[name] == index {
                let from = self.stack.iter().position(|&other| other == name).unwrap_or(0);
                self.found.push(self.stack.split_off(from).iter().map(|s| s.to_string()).collect());
            }
        }
    }
    let mut walk = Walk {
        uses,
        index: HashMap::new(),
        low: HashMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for name in uses.keys() {
        if !walk.index.contains_key(name.as_str()) {
            walk.visit(name);
        }
    }
    walk.found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(edges: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            uses.entry((*from).into()).or_default().insert((*to).into());
            uses.entry((*to).into()).or_default();
        }
        uses
    }

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let found = circles(&uses(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]));
        let mut sizes: Vec<_> = found.iter().map(Vec::len).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 1, 3]);
    }
}
