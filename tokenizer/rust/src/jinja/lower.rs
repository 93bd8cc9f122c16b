//! Rewrites a parsed template to use Python's operators where MiniJinja's differ.
//!
//! MiniJinja's operators cannot be redefined, but filters are called by name. So `a % b` becomes
//! `a` with a filter named "%", and so on for every operator that differs in Python; `operators`
//! defines those filters. Their names are not identifiers, so they hide no other filter.

use minijinja::machinery::{ast, Span};
use minijinja::value::Value;

use ast::{BinOpKind, CallArg, Expr, Spanned, Stmt, UnaryOpKind};

use super::methods::is_method_name;

#[derive(Default)]
pub struct Lowering {
    /// An `if` tests whether a member `content` is none: the template distinguishes null from "".
    pub tests_content_for_none: bool,
    in_condition: bool,
}

fn wrap<T>(node: T, span: Span) -> Spanned<T> {
    Spanned::new(node, span)
}

fn filter<'a>(name: &'a str, value: Expr<'a>, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    let expr = Some(value);
    Expr::Filter(wrap(ast::Filter { name, expr, args }, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(wrap(ast::Const { value }, span))
}

/// The filter that replaces an operator, if Python's operator differs from MiniJinja's.
fn operator_filter(op: BinOpKind) -> Option<&'static str> {
    Some(match op {
        BinOpKind::Lt => "<",
        BinOpKind::Lte => "<=",
        BinOpKind::Gt => ">",
        BinOpKind::Gte => ">=",
        BinOpKind::Add => "+",
        BinOpKind::Mul => "*",
        BinOpKind::Rem => "%",
        BinOpKind::Concat => "~",
        BinOpKind::In => "in?",
        _ => return None,
    })
}

/// Filters that visit all items of their value.
const ITERATING: [&str; 16] = [
    "batch",
    "groupby",
    "join",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
];

impl Lowering {
    pub fn stmt<'a>(&mut self, stmt: &Stmt<'a>) -> Stmt<'a> {
        match stmt {
            Stmt::Template(s) => {
                let children = self.body(&s.children);
                Stmt::Template(wrap(ast::Template { children }, s.span()))
            }
            Stmt::EmitExpr(s) => {
                let expr = self.expr(&s.expr);
                Stmt::EmitExpr(wrap(ast::EmitExpr { expr }, s.span()))
            }
            Stmt::EmitRaw(s) => Stmt::EmitRaw(wrap(ast::EmitRaw { raw: s.raw }, s.span())),
            Stmt::ForLoop(s) => self.for_loop(s),
            Stmt::IfCond(s) => self.if_cond(s),
            Stmt::WithBlock(s) => {
                let assignments = s.assignments.iter();
                let node = ast::WithBlock {
                    assignments: assignments
                        .map(|(target, value)| (self.target(target), self.expr(value)))
                        .collect(),
                    body: self.body(&s.body),
                };
                Stmt::WithBlock(wrap(node, s.span()))
            }
            Stmt::Set(s) => {
                let (target, expr) = (self.target(&s.target), self.expr(&s.expr));
                Stmt::Set(wrap(ast::Set { target, expr }, s.span()))
            }
            Stmt::SetBlock(s) => {
                let node = ast::SetBlock {
                    target: self.target(&s.target),
                    filter: self.optional(&s.filter),
                    body: self.body(&s.body),
                };
                Stmt::SetBlock(wrap(node, s.span()))
            }
            Stmt::AutoEscape(s) => {
                let (enabled, body) = (self.expr(&s.enabled), self.body(&s.body));
                Stmt::AutoEscape(wrap(ast::AutoEscape { enabled, body }, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let (filter, body) = (self.expr(&s.filter), self.body(&s.body));
                Stmt::FilterBlock(wrap(ast::FilterBlock { filter, body }, s.span()))
            }
            Stmt::Block(s) => {
                let node = ast::Block {
                    name: s.name,
                    required: s.required,
                    body: self.body(&s.body),
                };
                Stmt::Block(wrap(node, s.span()))
            }
            Stmt::Macro(s) => Stmt::Macro(self.macro_decl(s)),
            Stmt::CallBlock(s) => {
                let node = ast::CallBlock {
                    call: self.call(&s.call),
                    macro_decl: self.macro_decl(&s.macro_decl),
                };
                Stmt::CallBlock(wrap(node, s.span()))
            }
            Stmt::Continue(s) => Stmt::Continue(wrap(ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(wrap(ast::Break, s.span())),
            Stmt::Do(s) => {
                let call = self.call(&s.call);
                Stmt::Do(wrap(ast::Do { call }, s.span()))
            }
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                self.other_template(stmt)
            }
        }
    }

    /// Statements that name another template. There is only one, so they fail when they run, as in
    /// Transformers.
    fn other_template<'a>(&mut self, stmt: &Stmt<'a>) -> Stmt<'a> {
        match stmt {
            Stmt::Import(s) => {
                let (expr, name) = (self.expr(&s.expr), self.expr(&s.name));
                Stmt::Import(wrap(ast::Import { expr, name }, s.span()))
            }
            Stmt::FromImport(s) => {
                let names = s.names.iter();
                let node = ast::FromImport {
                    expr: self.expr(&s.expr),
                    names: names
                        .map(|(name, alias)| (self.expr(name), self.optional(alias)))
                        .collect(),
                };
                Stmt::FromImport(wrap(node, s.span()))
            }
            Stmt::Extends(s) => {
                let name = self.expr(&s.name);
                Stmt::Extends(wrap(ast::Extends { name }, s.span()))
            }
            Stmt::Include(s) => {
                let node = ast::Include {
                    name: self.expr(&s.name),
                    ignore_missing: s.ignore_missing,
                };
                Stmt::Include(wrap(node, s.span()))
            }
            _ => unreachable!("the caller passes statements of these four kinds"),
        }
    }

    fn for_loop<'a>(&mut self, s: &Spanned<ast::ForLoop<'a>>) -> Stmt<'a> {
        let items = self.expr(&s.iter);
        let node = ast::ForLoop {
            target: self.target(&s.target),
            iter: filter("for?", items, vec![], s.iter.span()),
            filter_expr: self.optional(&s.filter_expr),
            recursive: s.recursive,
            body: self.body(&s.body),
            else_body: self.body(&s.else_body),
        };
        Stmt::ForLoop(wrap(node, s.span()))
    }

    fn if_cond<'a>(&mut self, s: &Spanned<ast::IfCond<'a>>) -> Stmt<'a> {
        let outer = std::mem::replace(&mut self.in_condition, true);
        let expr = self.expr(&s.expr);
        self.in_condition = outer;
        let node = ast::IfCond {
            expr,
            true_body: self.body(&s.true_body),
            false_body: self.body(&s.false_body),
        };
        Stmt::IfCond(wrap(node, s.span()))
    }

    fn macro_decl<'a>(&mut self, s: &Spanned<ast::Macro<'a>>) -> Spanned<ast::Macro<'a>> {
        let node = ast::Macro {
            name: s.name,
            args: self.exprs(&s.args),
            defaults: self.exprs(&s.defaults),
            body: self.body(&s.body),
        };
        wrap(node, s.span())
    }

    fn body<'a>(&mut self, body: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
        body.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn exprs<'a>(&mut self, exprs: &[Expr<'a>]) -> Vec<Expr<'a>> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn optional<'a>(&mut self, expr: &Option<Expr<'a>>) -> Option<Expr<'a>> {
        expr.as_ref().map(|expr| self.expr(expr))
    }

    fn args<'a>(&mut self, args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
        let arg = |arg: &CallArg<'a>| match arg {
            CallArg::Pos(expr) => CallArg::Pos(self.expr(expr)),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, self.expr(expr)),
            CallArg::PosSplat(expr) => CallArg::PosSplat(self.expr(expr)),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(self.expr(expr)),
        };
        args.iter().map(arg).collect()
    }

    fn call<'a>(&mut self, s: &Spanned<ast::Call<'a>>) -> Spanned<ast::Call<'a>> {
        // The compiler recognises a call of a method by the attribute that is called.
        let expr = match &s.expr {
            Expr::GetAttr(attr) => self.plain_attribute(attr),
            other => self.expr(other),
        };
        let args = self.args(&s.args);
        wrap(ast::Call { expr, args }, s.span())
    }

    fn plain_attribute<'a>(&mut self, s: &Spanned<ast::GetAttr<'a>>) -> Expr<'a> {
        let (expr, name) = (self.expr(&s.expr), s.name);
        Expr::GetAttr(wrap(ast::GetAttr { expr, name }, s.span()))
    }

    /// The target of an assignment: names, attributes of namespaces, and tuples or lists of these.
    fn target<'a>(&mut self, target: &Expr<'a>) -> Expr<'a> {
        let span = target.span();
        match target {
            Expr::GetAttr(s) => self.plain_attribute(s),
            Expr::List(s) => {
                let items = s.items.iter().map(|item| self.target(item)).collect();
                Expr::List(wrap(ast::List { items }, span))
            }
            Expr::Tuple(s) => {
                let items = s.items.iter().map(|item| self.target(item)).collect();
                Expr::Tuple(wrap(ast::Tuple { items }, span))
            }
            other => self.expr(other),
        }
    }

    fn expr<'a>(&mut self, expr: &Expr<'a>) -> Expr<'a> {
        let span = expr.span();
        match expr {
            Expr::Var(s) => Expr::Var(wrap(ast::Var { id: s.id }, span)),
            Expr::Const(s) => constant(s.value.clone(), span),
            Expr::Slice(s) => {
                let none = || constant(Value::from(()), span);
                let bounds = [&s.start, &s.stop, &s.step];
                let bounds = bounds.map(|bound| self.optional(bound).unwrap_or_else(none));
                filter("[:]", self.expr(&s.expr), bounds.into(), span)
            }
            Expr::UnaryOp(s) => {
                let value = self.expr(&s.expr);
                match s.op {
                    UnaryOpKind::Neg => filter("-x", value, vec![], span),
                    UnaryOpKind::Not => Expr::UnaryOp(wrap(
                        ast::UnaryOp {
                            op: UnaryOpKind::Not,
                            expr: value,
                        },
                        span,
                    )),
                }
            }
            Expr::BinOp(s) => {
                let (left, right) = (self.expr(&s.left), self.expr(&s.right));
                match operator_filter(s.op) {
                    Some(name) => filter(name, left, vec![right], span),
                    None => Expr::BinOp(wrap(
                        ast::BinOp {
                            op: s.op,
                            left,
                            right,
                        },
                        span,
                    )),
                }
            }
            Expr::Compare(s) => {
                let ops = s.ops.iter();
                let node = ast::Compare {
                    expr: self.expr(&s.expr),
                    ops: ops
                        .map(|op| ast::CompareOp {
                            op: op.op,
                            expr: self.expr(&op.expr),
                        })
                        .collect(),
                };
                Expr::Compare(wrap(node, span))
            }
            Expr::IfExpr(s) => {
                let node = ast::IfExpr {
                    test_expr: self.expr(&s.test_expr),
                    true_expr: self.expr(&s.true_expr),
                    false_expr: self.optional(&s.false_expr),
                };
                Expr::IfExpr(wrap(node, span))
            }
            Expr::Filter(s) => {
                let mut value = self.optional(&s.expr);
                if ITERATING.contains(&s.name) {
                    value = value.map(|value| filter("for?", value, vec![], span));
                }
                let node = ast::Filter {
                    name: s.name,
                    expr: value,
                    args: self.args(&s.args),
                };
                Expr::Filter(wrap(node, span))
            }
            Expr::Test(s) => self.test(s),
            Expr::GetAttr(s) if is_method_name(s.name) => {
                let name = constant(Value::from(s.name), span);
                filter(".", self.expr(&s.expr), vec![name], span)
            }
            Expr::GetAttr(s) => self.plain_attribute(s),
            Expr::GetItem(s) => {
                let node = ast::GetItem {
                    expr: self.expr(&s.expr),
                    subscript_expr: self.expr(&s.subscript_expr),
                };
                Expr::GetItem(wrap(node, span))
            }
            Expr::Call(s) => Expr::Call(self.call(s)),
            Expr::List(s) => {
                let items = self.exprs(&s.items);
                Expr::List(wrap(ast::List { items }, span))
            }
            Expr::Tuple(s) => {
                let items = self.exprs(&s.items);
                Expr::Tuple(wrap(ast::Tuple { items }, span))
            }
            Expr::Map(s) => {
                let (keys, values) = (self.exprs(&s.keys), self.exprs(&s.values));
                Expr::Map(wrap(ast::Map { keys, values }, span))
            }
        }
    }

    fn test<'a>(&mut self, s: &Spanned<ast::Test<'a>>) -> Expr<'a> {
        let of_content = match &s.expr {
            Expr::GetAttr(attr) => attr.name == "content",
            Expr::GetItem(item) => {
                matches!(&item.subscript_expr, Expr::Const(key) if key.value.as_str() == Some("content"))
            }
            _ => false,
        };
        if self.in_condition && of_content && s.name == "none" {
            self.tests_content_for_none = true;
        }
        let node = ast::Test {
            name: s.name,
            expr: self.expr(&s.expr),
            args: self.args(&s.args),
        };
        Expr::Test(wrap(node, s.span()))
    }
}
