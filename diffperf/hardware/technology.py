import equinox as eqx


class Technology(eqx.Module):
    pass
