"""Programs that try to escape the sandbox or to forge a pass. Tests import this file by its path.

Each escape is the body of a function `f(secret, marker, port, pid)` that returns True if it succeeds: `secret` is a
file with a known text, `marker` a file that must not be created, `port` has a listening server, and `pid` is a process
that must not be killed. A forgery is a whole program that pretends to be `def double(x): return 2 * x`.
"""

from __future__ import annotations

ESCAPES: dict[str, str] = {
    "read a file of the user's": "return open(secret).read() != ''",
    "read through a link": "import os; os.symlink(secret, 'l'); return open('l').read() != ''",
    "write a file of the user's": "open(marker, 'w').write('x'); return True",
    "write to the root": "open('/marker', 'w').write('x'); return True",
    "write to the interpreter": "import os; open(os.path.dirname(os.__file__) + '/marker.py', 'w'); return True",
    "write to the runner": "open('/runner.py', 'a').write('x'); return True",
    "read the environment": "import os; return 'IPPO_SECRET' in os.environ or 'HOME' in os.environ",
    "look into a home": (
        "import os, sys\n"
        "    homes = [it for it in ('/home', '/root', os.path.dirname(secret)) if os.path.isdir(it)]\n"
        "    found = [os.path.join(home, name) for home in homes for name in os.listdir(home)]\n"
        "    return any(not sys.base_prefix.startswith(it) for it in found)"  # the interpreter may be in a home
    ),
    "see other processes": "import os; return bool([p for p in os.listdir('/proc') if p.isdigit()])",
    "read its parent's memory": "import os; return bool(open(f'/proc/{os.getppid()}/mem', 'rb'))",
    "end its parent": "import os; os.kill(os.getppid(), 9); os.kill(1, 9); import time; time.sleep(0.2); return False",
    "end another process": "import os; os.kill(pid, 9); return True",
    "end everybody": "import os; os.kill(-1, 9); return False",
    "connect": "import socket; socket.create_connection(('127.0.0.1', port), 1); return True",
    "open any socket": "import socket; socket.socket(socket.AF_UNIX); return True",
    "start a process": "import os; os.fork() or os._exit(0); return True",
    "start a command": "import subprocess; return subprocess.run(['/usr/bin/true']).returncode == 0",
    "bomb with processes": "import os\n    while True: os.fork()",
    "become root": "import os; os.setuid(0); return os.getuid() == 0",
    "have its user's number": "import os; return os.getuid() != 65534",
    "mount": "import ctypes; return ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "make another namespace": "import ctypes; return ctypes.CDLL(None).unshare(0x10000000) == 0",
    "trace": "import ctypes; return ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "memory that no limit counts": "import os; return bool(os.memfd_create('x'))",
    "take all memory": "x = bytearray(2 ** 31); return True",
    "fill the disk": (
        "n = 0\n"
        "    for i in range(6):\n"
        "        with open(str(i), 'wb', buffering=0) as file:\n"
        "            n += file.write(b'x' * 2 ** 22)\n"
        "    return n > 2 ** 24"
    ),
    "a large file": "open('x', 'wb').truncate(2 ** 25); return True",
    "raise its own limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 ** 40, 2 ** 40)); return True",
    "find open files": "import os; return any(_opens(n) for n in range(5, 64))",
}
NOT_WITHOUT_WALLS = {  # not run without a sandbox: they harm the machine or need privileges
    "write to the root",
    "write to the interpreter",
    "write to the runner",
    "read its parent's memory",
    "end its parent",
    "end everybody",
    "bomb with processes",
    "become root",
    "mount",
    "make another namespace",
    "trace",
}
HELPERS = """
def _opens(number):
    import os
    import stat
    try:
        return not stat.S_ISCHR(os.fstat(number).st_mode)  # /dev/null is the runner's
    except OSError:
        return False
"""

RIGHT = "def double(x):\n    return 2 * x\n"
FORGERIES: dict[str, str] = {
    "print a verdict": "print('{\"passed\": 1.0}')\ndef double(x):\n    print('passed')\n",
    "exit well while it is defined": "import sys\ndef double(x): return 2 * x\nsys.exit(0)",
    "end well in a call": "import os\ndef double(x): os._exit(0)",
    "leave well in a call": "def double(x): raise SystemExit(0)",
    "equal to everything": (
        "class Same:\n    __eq__ = lambda self, other: True\n    __hash__ = None\ndef double(x): return Same()"
    ),
    "a number that is equal to everything": (
        "class Same(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
        "def double(x): return Same(7)"
    ),
    "no number": "def double(x): return float('nan')",
    "change what the runner writes with": (
        "import sys\nmain = sys.modules['__main__']\nmain.encode_value = lambda value: True\n"
        "main.json.dumps = lambda *a, **k: '{\"passed\": 1}'\n"
        "def double(x): return None"
    ),
    "change built-in functions": (
        "import builtins\nbuiltins.all = builtins.any = lambda *a: True\nbuiltins.AssertionError = Exception\n"
        "def double(x): return None"
    ),
    "write answers before it is asked": (
        "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b'{\"nonce\": \"\", \"value\": 2}\\n' * 9)\n"
        "    except OSError: pass\ndef double(x): return None"
    ),
    "answer with another's nonce": (
        "import sys, os, json\n"
        "def double(x):\n"
        "    frame = sys._getframe(1)\n"
        "    frame.f_locals['request']['nonce'] = 'passed'\n"
        "    return 2 * x"
    ),
    "look for what is expected": (
        "import gc, sys\n"
        "def double(x):\n"
        "    frame, found = sys._getframe(), []\n"
        "    while frame:\n"
        "        found += [str(v) for v in frame.f_locals.values()]\n"
        "        frame = frame.f_back\n"
        "    text = ' '.join(found + sys.argv + [str(o) for o in gc.get_objects() if isinstance(o, str)])\n"
        "    return 42424242424242 if '42424242424242' in text else None"
    ),
    "raise what tests raise": "def double(x): raise AssertionError('passed')",
    "raise what ends the tests": "def double(x): raise StopIteration",
    "a name that is no error": "class KeyboardInterrupt(BaseException): pass\ndef double(x): raise KeyboardInterrupt",
    "a value that cannot be read": "def double(x):\n    a = []\n    for _ in range(9000): a = [a]\n    return a",
    "an endless value": "def double(x):\n    a = []\n    a.append(a)\n    return a",
    "flood": (
        "import os\ndef double(x):\n    for fd in (4, 3):\n        try:\n"
        "            while True: os.write(fd, b'x' * 65536)\n        except OSError: pass"
    ),
    "a check of its own": "def check(candidate): pass\ndef double(x): return None",
    "define check and forget the function": "def check(candidate): return True",
}  # fmt: skip
