//! Owners and rows. An owner is a type with state of its own. A row is a type that joins several
//! owners, such as an engine or a mount.
//!
//! # What must hold
//!
//! - A row's fields name its owners. The fields of an owner are private, so no file outside the
//!   owner's module and its children sees them.
//! - A closed row has private fields, too. Most functions take its owners instead of the row: the
//!   number of blocks of its methods in other files has a limit, which only falls.
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

/// The closed rows. For each, the number of blocks of methods outside of the file of the type.
const CLOSED: [(&str, usize); 1] = [("Engine", 11)];

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

/// What the files of a crate declare.
#[derive(Default)]
struct All {
    structs: BTreeMap<String, Parts>,
    /// The types of blocks of methods, each with its file.
    impls: Vec<(String, usize)>,
}

/// Fields of owners that other modules see, by file.
pub(super) fn open_fields(sources: &[Source], row: &str) -> Vec<(usize, Vec<Finding>)> {
    let mut all = All::default();
    for (file, source) in sources.iter().enumerate() {
        collect(file, &source.text, &mut all);
    }
    let closed = CLOSED.iter().find(|(name, _)| *name == row);
    open_of(&all, row, closed.map(|(_, most)| *most))
}

/// `most` is the limit of a closed row.
fn open_of(all: &All, row: &str, most: Option<usize>) -> Vec<(usize, Vec<Finding>)> {
    let Some(parts) = all.structs.get(row) else {
        return vec![(0, vec![(0, format!("there is no {row}"))])];
    };
    let mut of_row = Vec::new();
    if let Some(most) = most {
        of_row.extend(parts.open.iter().cloned());
        let elsewhere = all.impls.iter().filter(|(of, file)| of == row && *file != parts.file);
        let count = elsewhere.count();
        if count != most {
            of_row.push((0, format!("{count} blocks of methods in other files, not {most}")));
        }
    }
    let owners =
        parts.types.iter().filter(|name| *name != row).filter_map(|name| all.structs.get(name));
    owners
        .filter(|owner| !owner.open.is_empty() && !owner.comment.contains(WHY_OPEN))
        .map(|owner| (owner.file, owner.open.clone()))
        .chain((!of_row.is_empty()).then_some((parts.file, of_row)))
        .collect()
}

fn collect(file: usize, text: &str, all: &mut All) {
    // A file that cannot be parsed was reported when it was read.
    let Ok(parsed) = syn::parse_file(text) else { return };
    let mut structs = Structs::default();
    structs.visit_file(&parsed);
    all.impls.extend(structs.impls.into_iter().map(|of| (of, file)));
    for item in structs.items {
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
        all.structs.insert(item.ident.to_string(), parts);
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
struct Structs<'ast> {
    items: Vec<&'ast syn::ItemStruct>,
    impls: Vec<String>,
}

impl<'ast> Visit<'ast> for Structs<'ast> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.items.push(item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            self.impls.extend(of.path.get_ident().map(ToString::to_string));
        }
        syn::visit::visit_item_impl(self, item);
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
        found_in(&[text], None)
    }

    fn found_in(texts: &[&str], most: Option<usize>) -> Vec<(usize, String)> {
        let mut all = All::default();
        texts.iter().enumerate().for_each(|(file, text)| collect(file, text, &mut all));
        open_of(&all, "Row", most).into_iter().flat_map(|(_, found)| found).collect()
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
    fn rule_closes_a_row() {
        let closed = "pub struct Row { other: u64 }\nimpl Row {}\nimpl Drop for Row {}\n";
        let (elsewhere, others) = ("impl Row {}\n", "impl Clone for Row {}\nimpl<T> Other<T> {}\n");
        assert!(found_in(&[closed, elsewhere, others], Some(1)).is_empty());
        assert_eq!(found_in(&[ROW], Some(0)), [(1, "Row.a".to_owned())]);
        assert_eq!(found_in(&[closed, elsewhere, elsewhere], Some(1)).len(), 1);
        assert_eq!(found_in(&[closed, others], Some(1)).len(), 1, "the limit has to fall");
    }

    #[test]
    fn rule_reports_a_row_that_is_gone() {
        assert_eq!(found("struct Other;").len(), 1);
    }
}
