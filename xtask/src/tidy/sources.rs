//! The source files of a crate, each with its place in the module tree and the names that it uses.
//!
//! # What must hold
//!
//! - Code that only tests compile is no production code: `tests/`, `benches/`, `examples/` and
//!   items behind `#[cfg(test)]` are left out here.
//! - A module that has no file of its own belongs to the file that contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::Visit;

/// A path as written: its segments, without generics.
pub(super) type Segments = Vec<String>;

/// One file of production code.
#[derive(Debug)]
pub(super) struct Source {
    /// The path below the top of the project.
    pub(super) path: PathBuf,
    /// The module's path below the crate's root; empty for the root itself.
    pub(super) module: Segments,
    /// The whole text.
    pub(super) text: String,
    /// The lines that only tests compile, counted from zero.
    pub(super) test_lines: BTreeSet<usize>,
    /// Names that the file defines, inline modules included.
    pub(super) defines: BTreeSet<String>,
    /// Names that the file imports, and the paths that they stand for.
    pub(super) imports: BTreeMap<String, Segments>,
    /// Paths of modules from which everything is imported.
    pub(super) globs: Vec<Segments>,
    /// Every path that the file's code mentions, except re-exports of its own children.
    pub(super) mentions: BTreeSet<Segments>,
    /// Fields that hold a lock of the standard kind: line, counted from one, and name.
    pub(super) locks: Vec<(usize, String)>,
}

impl Source {
    /// How many lines of production code the file has, comments and blank lines included.
    pub(super) fn production_lines(&self) -> usize {
        self.text.lines().count() - self.test_lines.len()
    }
}

/// Reads a crate's module tree from its root file on.
///
/// # Errors
///
/// A file that cannot be read or parsed, by name.
pub(super) fn read_crate(top: &Path, root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    let dir = root.parent().unwrap_or(top).to_path_buf();
    read_module(top, root, &dir, Vec::new(), &mut sources)?;
    Ok(sources)
}

fn read_module(
    top: &Path,
    file: &Path,
    children: &Path,
    module: Segments,
    sources: &mut Vec<Source>,
) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut collect = Collect::default();
    collect.visit_file(&parsed);
    let path = file.strip_prefix(top).unwrap_or(file).to_path_buf();
    let found = std::mem::take(&mut collect.children);
    sources.push(Source {
        path,
        module: module.clone(),
        text,
        test_lines: collect.test_lines,
        defines: collect.defines,
        imports: collect.imports,
        globs: collect.globs,
        mentions: collect.mentions,
        locks: collect.locks,
    });
    for name in found {
        let flat = children.join(format!("{name}.rs"));
        let nested = children.join(&name).join("mod.rs");
        let child = if flat.exists() { flat } else { nested };
        let mut below = module.clone();
        below.push(name.clone());
        read_module(top, &child, &children.join(&name), below, sources)?;
    }
    Ok(())
}

#[derive(Default)]
struct Collect {
    test_lines: BTreeSet<usize>,
    defines: BTreeSet<String>,
    imports: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
    mentions: BTreeSet<Segments>,
    locks: Vec<(usize, String)>,
    /// Child modules with files of their own.
    children: Vec<String>,
}

/// Whether only tests compile an item with these attributes.
fn only_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let text = list.tokens.to_string();
        list.path.is_ident("cfg") && (text == "test" || text.starts_with("all (test"))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item as I;
    match item {
        I::Const(item) => &item.attrs,
        I::Enum(item) => &item.attrs,
        I::Fn(item) => &item.attrs,
        I::Impl(item) => &item.attrs,
        I::Macro(item) => &item.attrs,
        I::Mod(item) => &item.attrs,
        I::Static(item) => &item.attrs,
        I::Struct(item) => &item.attrs,
        I::Trait(item) => &item.attrs,
        I::Type(item) => &item.attrs,
        I::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    use syn::Item as I;
    let name = match item {
        I::Const(item) => &item.ident,
        I::Enum(item) => &item.ident,
        I::Fn(item) => &item.sig.ident,
        I::Macro(item) => item.ident.as_ref()?,
        I::Mod(item) => &item.ident,
        I::Static(item) => &item.ident,
        I::Struct(item) => &item.ident,
        I::Trait(item) => &item.ident,
        I::Type(item) => &item.ident,
        I::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl Collect {
    fn add_use(&mut self, tree: &syn::UseTree, before: &Segments, re_export: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                let mut before = before.clone();
                before.push(path.ident.to_string());
                self.add_use(&path.tree, &before, re_export);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before, re_export);
                }
            }
            syn::UseTree::Name(name) => {
                let mut path = before.clone();
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                let last = path.last().cloned().unwrap_or_default();
                self.add_import(last, path, re_export);
            }
            syn::UseTree::Rename(rename) => {
                let mut path = before.clone();
                path.push(rename.ident.to_string());
                self.add_import(rename.rename.to_string(), path, re_export);
            }
            syn::UseTree::Glob(_) => {
                self.globs.push(before.clone());
                if !re_export {
                    self.mentions.insert(before.clone());
                }
            }
        }
    }

    fn add_import(&mut self, name: String, path: Segments, re_export: bool) {
        if !re_export {
            self.mentions.insert(path.clone());
        }
        self.imports.insert(name, path);
    }

    /// Finds `crate::a::b` in the tokens of a macro call, which have no syntax tree.
    fn scan_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let mut path: Segments = Vec::new();
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(name) => path.push(name.to_string()),
                proc_macro2::TokenTree::Punct(mark) if mark.as_char() == ':' => {}
                other => {
                    self.end_scanned(&mut path);
                    if let proc_macro2::TokenTree::Group(group) = other {
                        self.scan_tokens(group.stream());
                    }
                }
            }
        }
        self.end_scanned(&mut path);
    }

    fn end_scanned(&mut self, path: &mut Segments) {
        let path = std::mem::take(path);
        if path.len() > 1 && matches!(path[0].as_str(), "crate" | "super" | "self") {
            self.mentions.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Collect {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if only_tests(attributes(item)) {
            let (from, to) = (item.span().start().line, item.span().end().line);
            self.test_lines.extend(from - 1..to);
            return;
        }
        self.defines.extend(name_of(item));
        match item {
            syn::Item::Use(item) => {
                let re_export = !matches!(item.vis, syn::Visibility::Inherited);
                self.add_use(&item.tree, &Vec::new(), re_export);
            }
            syn::Item::Mod(module) if module.content.is_none() => {
                self.children.push(module.ident.to_string());
            }
            _ => syn::visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if only_tests(&item.attrs) {
            self.test_lines.extend(item.span().start().line - 1..item.span().end().line);
            return;
        }
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.mentions.insert(segments);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.scan_tokens(invocation.tokens.clone());
        syn::visit::visit_macro(self, invocation);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        struct Finds(bool);
        impl<'ast> Visit<'ast> for Finds {
            fn visit_path(&mut self, path: &'ast syn::Path) {
                let last = path.segments.last().map(|last| last.ident.to_string());
                self.0 |= matches!(last.as_deref(), Some("Mutex" | "RwLock"));
                syn::visit::visit_path(self, path);
            }
        }
        let mut finds = Finds(false);
        finds.visit_type(&field.ty);
        if finds.0 {
            let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            self.locks.push((field.span().start().line, name));
        }
        syn::visit::visit_field(self, field);
    }
}
