"""Runs a module of FastChat that imports torch, transformers and the like without using them: with_stubs.py MODULE ARGUMENTS…

Whatever is asked of those packages is a class that can be inherited, called and used as a decorator, and does nothing.
"""
import importlib.abc
import importlib.machinery
import runpy
import sys
import types

STUBS = ("accelerate", "huggingface_hub", "torch", "transformers")


class Hollow(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Nothing(metaclass=Hollow):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, fn=None, *args, **kwargs):
        return fn


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Nothing
        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
