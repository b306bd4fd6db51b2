"""What users submit: a trainer, its code, a study."""
