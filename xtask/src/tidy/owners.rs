//! Owners and rows. An owner is a type with state of its own. A row is a type that joins several
//! owners, such as an engine or a mount.
//!
//! # What must hold
//!
//! - A row's fields name its owners. The fields of an owner are private, so no file outside the
//!   owner's module and its children sees them.
//! - A field's type that only holds values is no owner. The comment of the type says so: `Plain
//!   data: ...`.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::prose::Finding;
use super::sources::Source;

/// The rows of the project: the crate and the type.
pub(super) const ROWS: [(&str, &str); 5] = [
    ("crates/data", "Files"),
    ("crates/fs", "Mount"),
    ("crates/log", "SyncLog"),
    ("crates/reserve", "Reservations"),
    ("crates/txn", "Engine"),
];

/// In a struct's comment, the reason why its fields may be visible follows this text.
const WHY_OPEN: &str = "Plain data:";

/// A struct as it is written.
struct Parts {
    file: usize,
    comment: String,
    /// The types that its fields name.
    types: BTreeSet<String>,
    open: Vec<Finding>,
}

/// Fields of owners that other modules see, by file.
pub(super) fn open_fields(sources: &[Source], row: &str) -> Vec<(usize, Vec<Finding>)> {
    let mut all = BTreeMap::new();
    for (file, source) in sources.iter().enumerate() {
        collect(file, &source.text, &mut all);
    }
    open_of(&all, row)
}

fn open_of(all: &BTreeMap<String, Parts>, row: &str) -> Vec<(usize, Vec<Finding>)> {
    let Some(parts) = all.get(row) else {
        return vec![(0, vec![(0, format!("there is no {row}"))])];
    };
    let owners = parts.types.iter().filter(|name| *name != row).filter_map(|name| all.get(name));
    owners
        .filter(|owner| !owner.open.is_empty() && !owner.comment.contains(WHY_OPEN))
        .map(|owner| (owner.file, owner.open.clone()))
        .collect()
}

fn collect(file: usize, text: &str, all: &mut BTreeMap<String, Parts>) {
    // A file that cannot be parsed was reported when it was read.
    let Ok(parsed) = syn::parse_file(text) else { return };
    let mut structs = Structs::default();
    structs.visit_file(&parsed);
    for item in structs.0 {
        let mut types = Types::default();
        types.visit_fields(&item.fields);
        let fields = item.fields.iter().enumerate();
        let open = fields.filter(|(_, it)| !matches!(it.vis, syn::Visibility::Inherited)).map(
            |(number, it)| {
                let name = it.ident.as_ref().map_or(number.to_string(), ToString::to_string);
                (it.ty.span().start().line, format!("{}.{name}", item.ident))
            },
        );
        let comment = item.attrs.iter().filter_map(comment_of).collect::<Vec<_>>().join(" ");
        let parts = Parts { file, comment, types: types.0, open: open.collect() };
        all.insert(item.ident.to_string(), parts);
    }
}

/// The text of a line of a comment, which is an attribute to the parser.
fn comment_of(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(text) = &pair.value else { return None };
    let syn::Lit::Str(text) = &text.lit else { return None };
    pair.path.is_ident("doc").then(|| text.value().trim().to_owned())
}

#[derive(Default)]
struct Structs<'ast>(Vec<&'ast syn::ItemStruct>);

impl<'ast> Visit<'ast> for Structs<'ast> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item);
    }
}

#[derive(Default)]
struct Types(BTreeSet<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.extend(path.segments.last().map(|last| last.ident.to_string()));
        syn::visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let mut all = BTreeMap::new();
        collect(0, text, &mut all);
        open_of(&all, "Row").into_iter().flat_map(|(_, found)| found).collect()
    }

    const ROW: &str = "pub struct Row { pub(crate) a: Arc<Apart<Owner>>, other: u64 }\n";

    #[test]
    fn rule_finds_open_fields_of_owners() {
        let open = "struct Owner {\n    kept: u64,\n    pub(super) seen: u64,\n}\n";
        assert_eq!(found(&format!("{ROW}{open}")), [(4, "Owner.seen".to_owned())]);
        assert_eq!(found(&format!("{ROW}struct Owner(pub u64);")), [(2, "Owner.0".to_owned())]);
    }

    #[test]
    fn rule_passes_private_fields_plain_data_and_others() {
        let closed = "struct Owner { kept: u64 }\nstruct Else { pub seen: u64 }\n";
        assert!(found(&format!("{ROW}{closed}")).is_empty());
        let plain = "/// A thing.\n///\n/// Plain data: values.\nstruct Owner { pub seen: u64 }\n";
        assert!(found(&format!("{ROW}{plain}")).is_empty());
    }

    #[test]
    fn rule_reports_a_row_that_is_gone() {
        assert_eq!(found("struct Other;").len(), 1);
    }
}
