"""Training plans as other frameworks' configurations, in their own keys, and their configurations as plans."""

from rooftop.frameworks._convert import FRAMEWORKS, Exported, Framework, Imported, export, import_plan

__all__ = ["FRAMEWORKS", "Exported", "Framework", "Imported", "export", "import_plan"]
