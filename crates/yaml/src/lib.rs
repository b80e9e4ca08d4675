//! Parses the text of a file into its first YAML document: a tree with the place of every node.
//!
//! Aliases are shared, never copied, so the tree is as large as the text. How much it holds with all aliases followed
//! is computed while parsing, and bounded; so are its depth and the number of its values. Scalars keep their text; the
//! code that uses them decides what they mean.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// How deep collections may nest, aliases followed. Rules that may nest 32 levels deep need 70.
const DEPTH_MAX: usize = 200;

/// What a node counts besides its text towards the bound on aliases, in bytes: about the size of a short one in a
/// file, and far less than its size in memory.
const NODE_BYTES: u64 = 32;

/// A set may hold one value for every so many bytes of its longest file. The tersest rules need five bytes a value. A
/// value takes far more memory, so a file of only brackets would take more than anybody has.
const VALUE_BYTES_MIN: u64 = 4;

/// This many values are always allowed, however short files have to be.
const VALUES_MIN: u64 = 1 << 20;

/// A place in a file, line and column from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

/// What the files of a set may still contain, all together.
#[derive(Clone, Debug)]
pub struct Budget {
    values: Allowance,
    aliased_bytes: Allowance,
    /// What the messages say about the bound on values.
    set_by: Option<&'static str>,
}

impl Place {
    /// Where a file begins: the place of a problem of the whole file.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// What is left of a maximum.
#[derive(Clone, Debug)]
struct Allowance {
    left: u64,
    max: u64,
}

/// A node of a [`Document`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

/// The first YAML document of a file.
#[derive(Debug)]
pub struct Document<'t> {
    nodes: Vec<Node<'t>>,
    /// Its outermost node; none in an empty file.
    pub root: Option<NodeId>,
    /// Where a second document begins, if there is one that is not empty.
    pub second: Option<Place>,
}

/// A value with its place.
#[derive(Debug)]
pub struct Node<'t> {
    /// Where it begins.
    pub at: Place,
    /// What it holds.
    pub content: Content<'t>,
    /// Its size with all aliases followed, in bytes: its text, and [`NODE_BYTES`] for every node.
    expanded: u64,
    /// The depth of collections in it, itself included.
    height: usize,
}

/// What a node holds.
#[derive(Debug)]
pub enum Content<'t> {
    /// Text.
    Scalar(Scalar<'t>),
    /// Values in order.
    Sequence(Vec<NodeId>),
    /// Keys with their values, in order.
    Mapping(Vec<(NodeId, NodeId)>),
}

/// A scalar: its text, and what decides its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar<'t> {
    /// Its text, escapes and folds resolved.
    pub text: Cow<'t, str>,
    /// What decides its type.
    pub typing: Typing,
}

/// What decides the type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// The look of its text.
    Plain,
    /// It is text: in quotes, a block, or with the tag `!!str` or one that we do not know.
    Text,
    /// A tag that the text has to follow: `!!int`, `!!bool`, `!!float`, `!!null`.
    Tagged,
}

impl<'t> Document<'t> {
    /// Parses the first document of a text, with values from the budget. `Err` is a place and what is wrong there.
    pub fn parse(text: &'t str, budget: &mut Budget) -> Result<Self, (Place, String)> {
        let mut builder = Builder::new(budget);
        let mut events = Parser::new_from_str(text);
        for event in events.by_ref() {
            let (event, span) = event.map_err(|error| syntax_error(&error))?;
            if matches!(event, Event::DocumentEnd | Event::StreamEnd) {
                break;
            }
            builder.event(event, place(&span))?;
        }
        Ok(Self { nodes: builder.nodes, root: builder.root, second: second_document(events) })
    }

    /// All nodes, in no particular order.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<'t>> {
        self.nodes.iter()
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node<'t> {
        &self.nodes[id.0 as usize]
    }
}

/// Where the next document begins that is not empty. Text that cannot be parsed is not empty.
fn second_document<'t>(events: impl Iterator<Item = Result<(Event<'t>, Span), ScanError>>) -> Option<Place> {
    for event in events {
        match event {
            Err(error) => return Some(syntax_error(&error).0),
            Ok((Event::Scalar(text, ScalarStyle::Plain, ..), _)) if matches!(&*text, "" | "~") => {}
            Ok((event, span)) if event.is_node() => return Some(place(&span)),
            Ok(_) => {}
        }
    }
    None
}

impl Budget {
    /// The budget of a set whose longest file may have this many bytes. All its aliases may stand for as many.
    pub const fn of_set(file_bytes_max: usize) -> Self {
        let bytes = file_bytes_max as u64;
        let values = bytes / VALUE_BYTES_MIN;
        let values = if values < VALUES_MIN { VALUES_MIN } else { values };
        Self { values: Allowance::new(values), aliased_bytes: Allowance::new(bytes), set_by: None }
    }

    /// Lets messages name the option that sets the length of the longest file.
    #[must_use]
    pub const fn set_by(self, option: &'static str) -> Self {
        Self { set_by: Some(option), ..self }
    }
}

impl Allowance {
    const fn new(max: u64) -> Self {
        Self { left: max, max }
    }

    /// Takes this amount; `Err` is the maximum.
    fn take(&mut self, amount: u64) -> Result<(), u64> {
        self.left = self.left.checked_sub(amount).ok_or(self.max)?;
        Ok(())
    }
}

struct Builder<'t, 'b> {
    nodes: Vec<Node<'t>>,
    root: Option<NodeId>,
    open: Vec<Open>,
    /// The nodes that have an anchor; `None` while they are open.
    anchors: HashMap<usize, Option<NodeId>>,
    budget: &'b mut Budget,
}

/// A collection whose end has not come yet.
struct Open {
    at: Place,
    anchor: usize,
    is_mapping: bool,
    children: Vec<NodeId>,
}

impl<'t, 'b> Builder<'t, 'b> {
    fn new(budget: &'b mut Budget) -> Self {
        Self { nodes: Vec::new(), root: None, open: Vec::new(), anchors: HashMap::new(), budget }
    }

    fn event(&mut self, event: Event<'t>, at: Place) -> Result<(), (Place, String)> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let typing = typing(style, tag.as_deref());
                self.close(Content::Scalar(Scalar { text, typing }), anchor, at)?;
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, false)?,
            Event::MappingStart(_, anchor, _) => self.open(at, anchor, true)?,
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.alias(anchor, at)?,
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at: Place, anchor: usize, is_mapping: bool) -> Result<(), (Place, String)> {
        if self.open.len() >= DEPTH_MAX {
            return Err((at, too_deep()));
        }
        self.anchors.extend((anchor > 0).then_some((anchor, None)));
        self.open.push(Open { at, anchor, is_mapping, children: Vec::new() });
        Ok(())
    }

    fn end(&mut self) -> Result<(), (Place, String)> {
        let Some(Open { at, anchor, is_mapping, children }) = self.open.pop() else { return Ok(()) };
        let content = if is_mapping {
            Content::Mapping(children.as_chunks().0.iter().map(|&[key, value]| (key, value)).collect())
        } else {
            Content::Sequence(children)
        };
        self.close(content, anchor, at)
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), (Place, String)> {
        let target = self.anchors.get(&anchor).copied().flatten();
        let Some(target) = target else {
            return Err((
                at,
                "alias of a value that contains it (expected a value that ends before it)".to_owned(),
            ));
        };
        let Node { expanded, height, .. } = self.nodes[target.0 as usize];
        if self.open.len() + height > DEPTH_MAX {
            return Err((at, too_deep()));
        }
        self.budget.aliased_bytes.take(expanded).map_err(|max| {
            (at, format!("the aliases up to here expand to too much (expected at most {max} bytes)"))
        })?;
        self.attach(target);
        Ok(())
    }

    /// Adds a complete node.
    fn close(&mut self, content: Content<'t>, anchor: usize, at: Place) -> Result<(), (Place, String)> {
        self.budget.values.take(1).map_err(|max| {
            let setter = self.budget.set_by.map(|option| format!("; {option} sets the bound"));
            let setter = setter.unwrap_or_default();
            (at, format!("too many values up to here (expected at most {max}{setter})"))
        })?;
        let sum = |ids: &mut dyn Iterator<Item = NodeId>| {
            ids.map(|id| &self.nodes[id.0 as usize]).fold((NODE_BYTES, 1), |(sum, height), child| {
                (sum + child.expanded, height.max(child.height + 1))
            })
        };
        let (expanded, height) = match &content {
            Content::Scalar(scalar) => (NODE_BYTES + scalar.text.len() as u64, 0),
            Content::Sequence(ids) => sum(&mut ids.iter().copied()),
            Content::Mapping(pairs) => sum(&mut pairs.iter().flat_map(|&(key, value)| [key, value])),
        };
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node { at, content, expanded, height });
        self.anchors.extend((anchor > 0).then_some((anchor, Some(id))));
        self.attach(id);
        Ok(())
    }

    fn attach(&mut self, id: NodeId) {
        match self.open.last_mut() {
            Some(parent) => parent.children.push(id),
            None => self.root = Some(id),
        }
    }
}

impl Scalar<'_> {
    /// It is null.
    pub fn is_null(&self) -> bool {
        self.typing != Typing::Text && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }
}

fn typing(style: ScalarStyle, tag: Option<&Tag>) -> Typing {
    match (tag, style) {
        (None, ScalarStyle::Plain) => Typing::Plain,
        (Some(tag), _) if matches!(tag.core_suffix(), Some("int" | "bool" | "float" | "null")) => {
            Typing::Tagged
        }
        _ => Typing::Text,
    }
}

fn place(span: &Span) -> Place {
    place_of(span.start.line(), span.start.col())
}

fn place_of(line: usize, column: usize) -> Place {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Place { line: number(line), column: number(column.saturating_add(1)) }
}

fn syntax_error(error: &ScanError) -> (Place, String) {
    let marker = error.marker();
    (place_of(marker.line(), marker.col()), format!("not YAML: {} (expected YAML)", error.info()))
}

fn too_deep() -> String {
    format!("nested too deep (expected at most {DEPTH_MAX} collections in each other)")
}
